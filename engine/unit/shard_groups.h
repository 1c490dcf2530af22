#pragma once

#include <zero/comm/group.h>
#include <zero/engine/plan.h>

#include <memory>

namespace zero {

/// The ranks that one stream's collectives run between, as the plan cuts states over them: the
/// world, or with MiCS consecutive ranks that hold one copy of everything between them, and their
/// replicas; with hpZ also the ranks of a node.
///
/// Made by all ranks together (blocks); every stream has groups of its own, so that their
/// collectives may overtake each other.
class ShardGroups {
 public:
  ShardGroups(const StatePlan& plan, comm::Group& world);

  /// The ranks that hold one whole copy between them.
  [[nodiscard]] comm::Group& shards() const { return *shards_; }
  /// Those that hold the same slices, each of another copy; nullptr where there is one copy.
  [[nodiscard]] comm::Group* replicas() const { return replicas_.get(); }
  /// The ranks of this node; nullptr without hpZ.
  [[nodiscard]] comm::Group* node() const { return node_.get(); }
  /// Of all of them.
  [[nodiscard]] comm::Traffic traffic() const;

 private:
  std::unique_ptr<comm::Group> shards_;
  std::unique_ptr<comm::Group> replicas_;
  std::unique_ptr<comm::Group> node_;
};

}  // namespace zero
