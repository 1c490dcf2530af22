#include "engine/plan/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace zero {
namespace {

/// Consecutive leaves outside blocks share a unit as long as it has at most this many elements.
constexpr std::int64_t kMergeElems = 1 << 18;

/// A unit before its parameters are placed.
struct Draft {
  std::string name{};
  bool shared = false;
  bool closed = false;  ///< takes no further leaves
  std::int64_t elems = 0;
  std::vector<Parameter*> params{};
};

std::unordered_map<const Parameter*, int> count_users(const std::vector<Module*>& modules) {
  std::unordered_map<const Parameter*, int> users;
  for (const Module* module : modules) {
    for (const auto& parameter : module->parameters()) {
      ++users[parameter.get()];
    }
  }
  return users;
}

/// Walks the module tree in declaration order and deals the parameters out to units.
class UnitBuilder {
 public:
  explicit UnitBuilder(Module& model) : users_(count_users(modules_of(model))) {
    visit(model, nullptr);
  }
  [[nodiscard]] std::vector<Draft> take() { return std::move(drafts_); }

 private:
  void visit(Module& module, const Module* block) {
    const Module* inside = block != nullptr ? block : (module.is_block() ? &module : nullptr);
    if (inside == &module) {
      drafts_.push_back({.name = module.name()});
      block_ = drafts_.size() - 1;
    }
    for (const auto& parameter : module.parameters()) {
      if (placed_.insert(parameter.get()).second) {
        place(*parameter, module, inside != nullptr);
      }
    }
    for (Module* child : module.children()) {
      visit(*child, inside);
    }
    if (inside == &module) {
      drafts_[block_].closed = true;
    }
  }

  void place(Parameter& parameter, const Module& module, bool in_block) {
    const std::int64_t elems = parameter.info.shape.elems();
    if (users_.at(&parameter) > 1) {
      drafts_.push_back({.name = parameter.info.name,
                         .shared = true,
                         .closed = true,
                         .elems = elems,
                         .params = {&parameter}});
      return;
    }
    if (in_block) {
      add(drafts_[block_], parameter, elems);
      return;
    }
    if (drafts_.empty() || drafts_.back().closed || drafts_.back().elems + elems > kMergeElems) {
      drafts_.push_back({.name = module.name().empty() ? parameter.info.name : module.name()});
    }
    add(drafts_.back(), parameter, elems);
  }

  static void add(Draft& draft, Parameter& parameter, std::int64_t elems) {
    draft.params.push_back(&parameter);
    draft.elems += elems;
  }

  std::unordered_map<const Parameter*, int> users_;
  std::unordered_set<const Parameter*> placed_;
  std::vector<Draft> drafts_;
  std::size_t block_ = 0;
};

/// Appends the flats of one unit: at most one for each (trainable, persistent).
void add_flats(Layout& layout,
               const Draft& draft,
               int shards,
               const std::vector<bool>& persistent,
               const std::unordered_map<const Parameter*, std::size_t>& index_of) {
  const int unit = static_cast<int>(layout.units.size());
  layout.units.push_back({.name = draft.name, .shared = draft.shared, .flats = {}});
  std::map<std::pair<bool, bool>, int> flat_of;
  for (const Parameter* parameter : draft.params) {
    const std::size_t index = index_of.at(parameter);
    const std::pair<bool, bool> key{!parameter->info.trainable, persistent[index]};
    const auto [found, is_new] = flat_of.try_emplace(key, static_cast<int>(layout.flats.size()));
    if (is_new) {
      layout.flats.push_back({.unit = unit, .trainable = !key.first, .persistent = key.second});
      layout.units.back().flats.push_back(found->second);
    }
    Flat& flat = layout.flats[static_cast<std::size_t>(found->second)];
    const std::int64_t elems = parameter->info.shape.elems();
    flat.params.push_back({.param = index, .offset = flat.padded_elems, .elems = elems});
    flat.padded_elems += round_up(elems, kAlignElems);
  }
  for (const int index : layout.units.back().flats) {
    Flat& flat = layout.flats[static_cast<std::size_t>(index)];
    flat.padded_elems = round_up(flat.padded_elems, shards * kAlignElems);
    flat.slice_elems = flat.padded_elems / shards;
  }
}

}  // namespace

Layout make_layout(Module& model, int shards, const std::vector<bool>& persistent) {
  Layout layout;
  std::unordered_map<const Parameter*, std::size_t> index_of;
  std::unordered_set<std::string> names;
  for (const auto& parameter : parameters_of(model)) {
    if (!names.insert(parameter->info.name).second) {
      throw InputError(fmt::format("two parameters are called \"{}\"", parameter->info.name),
                       "model",
                       "give every module its own name");
    }
    index_of.emplace(parameter.get(), layout.params.size());
    layout.params.push_back(parameter->info);
  }
  for (const Draft& draft : UnitBuilder(model).take()) {
    if (!draft.params.empty()) {
      add_flats(layout, draft, shards, persistent, index_of);
    }
  }
  return layout;
}

}  // namespace zero
