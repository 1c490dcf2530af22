#pragma once

// The one place that names Catch2's header.
#include <catch2/catch.hpp>
