#pragma once

// Everything a training program needs; models come from <zero/nn/…> or from the user.
#include <zero/core/error.h>
#include <zero/engine/engine.h>
#include <zero/engine/launch.h>
