#pragma once

#include "engine/runtime/state_access.h"
#include <zero/engine/safetensors.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace zero {

/// Writes one checkpoint: what the ranks hold when it is made, through one staging buffer.
///
/// Made when nothing is in flight. run() may go on another thread while forward and backward run:
/// it reads the units in the order of the plan and tells when one may change again. Collective, on
/// the lane's group alone.
class CheckpointSaver {
 public:
  CheckpointSaver(EngineParts& parts,
                  Lane lane,
                  const std::string& dir,
                  std::string tag,
                  std::string client_state);

  /// `staged(count)`: the first `count` flats have been read. Throws, on every rank, if one rank
  /// fails; what was there before still stands then.
  void run(const std::function<void(int count)>& staged);

 private:
  /// A part of a parameter that this rank writes.
  template <class Body>
  void each_part(int flat, Body body) const;
  /// Reads all states through a bounded buffer into this rank's file.
  void write_rank_file(const std::function<void(int count)>& staged);
  void write_manifest();
  void add_extents(const Flat& flat, int rank, const SafetensorsReader& file);

  EngineParts& parts_;
  Lane lane_;
  CheckpointFolder folder_;
  CheckpointManifest manifest_;
  StateAccess access_;
};

/// A save on a thread of its own. Thread: the engine's.
class BackgroundSave {
 public:
  explicit BackgroundSave(std::unique_ptr<CheckpointSaver> saver);
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  BackgroundSave(BackgroundSave&&) = delete;
  BackgroundSave& operator=(BackgroundSave&&) = delete;
  ~BackgroundSave();

  /// Blocks until the states of a flat have been read, or nothing will be read any more.
  void wait_staged(int flat);
  /// Blocks until the save has ended; throws what it threw.
  void finish();

 private:
  void set_staged(int count);

  std::unique_ptr<CheckpointSaver> saver_;
  std::mutex mutex_;  // guards staged_
  std::condition_variable changed_;
  int staged_ = 0;            ///< flats
  std::exception_ptr error_;  ///< of the thread; read after it has been joined
  std::thread thread_;
};

}  // namespace zero
