#include "engine/comm/mpi/operations.h"
#include "engine/comm/mpi/service.h"
#include <zero/comm/group.h>
#include <zero/core/error.h>

#include <fmt/format.h>

#include <numeric>
#include <utility>

namespace zero::comm {
namespace {

/// Runs on a stream's thread: hands the call to the service and waits for its end.
void run(MpiSession::Service& service,
         const std::shared_ptr<MpiGroupState>& group,
         const std::shared_ptr<const Call>& call) {
  const auto operation = std::make_shared<CallOperation>(group, call);
  if (!service.perform(operation, group->timeout_s)) {
    throw late(describe_late(operation->missing(), operation->signature(), group->timeout_s),
               group->name);
  }
}

class MpiGroup final : public Group {
 public:
  MpiGroup(MpiSession& session,
           std::shared_ptr<MpiGroupState> state,
           RankContext& context,
           accel::Device& device)
      : Group(context, device, state->rank, state->size),
        session_(session),
        state_(std::move(state)) {}

  [[nodiscard]] std::string name() const override { return state_->name; }
  [[nodiscard]] const std::vector<int>& world_ranks() const override { return state_->world_ranks; }

  [[nodiscard]] std::unique_ptr<Group> split(int color, int key) override {
    if (color < 0) {
      throw InputError(fmt::format("colour {} is negative", color),
                       "in split of group " + name(),
                       "use colours from 0 on");
    }
    const auto operation = std::make_shared<SplitOperation>(
        state_,
        Call{.verb = Verb::kSplit, .sequence = next_sequence(), .color = color, .key = key});
    if (!session_.service().perform(operation, state_->timeout_s)) {
      throw late(describe_late(operation->missing(), operation->signature(), state_->timeout_s),
                 name());
    }
    auto child = std::make_shared<MpiGroupState>();
    child->comm = operation->result();
    child->name = fmt::format("{}/{}", name(), color);
    child->world_ranks = operation->world_ranks();
    child->rank = operation->rank();
    child->size = static_cast<int>(child->world_ranks.size());
    child->timeout_s = state_->timeout_s;
    return std::make_unique<MpiGroup>(session_, std::move(child), context_, device_);
  }

  void abort(const std::string& reason, int exit_code) noexcept override {
    ZERO_LOG(context_.log, kInfo, "comm", "the job ends with status {}: {}", exit_code, reason);
    session_.service().abort(exit_code);
  }

  [[nodiscard]] Traffic traffic() const override { return state_->counters.read(); }

 protected:
  void enqueue(Call call, accel::Stream& stream) override {
    if (call.reduces() && !state_->staging) {
      state_->staging = device_.allocate(static_cast<std::size_t>(mpi_staging_bytes(size())),
                                         Category::kStaging,
                                         MemorySpace::kHost);
      state_->staging_host = device_.host_pointer(state_->staging.data());
    }
    stream.host_task(
        [&service = session_.service(),
         state = state_,
         shared = std::make_shared<const Call>(std::move(call))] { run(service, state, shared); });
  }

 private:
  MpiSession& session_;
  std::shared_ptr<MpiGroupState> state_;
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(MpiSession& session,
                                      RankContext& context,
                                      accel::Device& device) {
  if (context.rank != session.rank() || context.world != session.size()) {
    throw InputError(fmt::format("rank {} of {} is not MPI's rank {} of {}",
                                 context.rank,
                                 context.world,
                                 session.rank(),
                                 session.size()),
                     "in make_mpi_group",
                     "make the context with the session's rank and size");
  }
  const auto operation = std::make_shared<WorldOperation>();
  if (!session.service().perform(operation, context.env.timeout_s)) {
    throw PeerError(fmt::format("not all ranks came within {} s", context.env.timeout_s),
                    "in make_mpi_group",
                    "look at the log of the rank that is late");
  }
  auto state = std::make_shared<MpiGroupState>();
  state->comm = operation->result();
  state->name = "mpi";
  state->world_ranks.resize(static_cast<std::size_t>(session.size()));
  std::iota(state->world_ranks.begin(), state->world_ranks.end(), 0);
  state->rank = session.rank();
  state->size = session.size();
  state->timeout_s = context.env.timeout_s;
  return std::make_unique<MpiGroup>(session, std::move(state), context, device);
}

}  // namespace zero::comm
