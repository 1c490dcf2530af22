#include "engine/unit/shard_groups.h"

namespace zero {

ShardGroups::ShardGroups(const StatePlan& plan, comm::Group& world)
    : shards_(world.split(world.rank() / plan.shards, world.rank())) {
  if (plan.shards < plan.ranks) {
    replicas_ = world.split(world.rank() % plan.shards, world.rank());
  }
  if (plan.node_ranks > 1) {
    node_ = world.split(world.rank() / plan.node_ranks, world.rank());
  }
}

comm::Traffic ShardGroups::traffic() const {
  comm::Traffic sum;
  for (const comm::Group* group : {shards_.get(), replicas_.get(), node_.get()}) {
    sum += group != nullptr ? group->traffic() : comm::Traffic{};
  }
  return sum;
}

}  // namespace zero
