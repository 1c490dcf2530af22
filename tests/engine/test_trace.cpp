#include "engine/unit/trace.h"
#include <support/catch.h>

namespace {

using zero::Pass;
using zero::TraceBook;

/// Runs a pass and gives the number of uses that were not predicted.
int run_pass(TraceBook& book, Pass pass, const std::vector<int>& units) {
  int missed = 0;
  book.begin(pass);
  for (const int unit : units) {
    missed += book.visit(unit) ? 0 : 1;
  }
  book.end();
  return missed;
}

std::vector<int> expected(const TraceBook& book) {
  return {book.ahead().begin(), book.ahead().end()};
}

}  // namespace

TEST_CASE("trace: the first pass predicts nothing, the next ones everything", "[engine][trace]") {
  TraceBook book;
  CHECK(run_pass(book, Pass::kForward, {0, 1, 2}) == 3);
  CHECK(run_pass(book, Pass::kBackward, {2, 1, 0}) == 3);
  for (int step = 0; step < 3; ++step) {
    CHECK(run_pass(book, Pass::kForward, {0, 1, 2}) == 0);
    CHECK(run_pass(book, Pass::kBackward, {2, 1, 0}) == 0);
  }
  book.begin(Pass::kForward);
  CHECK(expected(book) == std::vector{0, 1, 2});
  CHECK(book.visit(0));
  CHECK(expected(book) == std::vector{1, 2});
}

TEST_CASE("trace: a model that alternates between paths is predicted after one round",
          "[engine][trace]") {
  TraceBook book;
  const std::vector<int> full = {0, 1, 2, 3};
  const std::vector<int> skipping = {0, 1, 3};
  const std::vector<int> other_way = {0, 2, 3};
  int missed = 0;
  for (int round = 0; round < 4; ++round) {
    missed = 0;
    for (const std::vector<int>& path : {full, skipping, other_way}) {
      missed += run_pass(book, Pass::kForward, path);
      missed += run_pass(book, Pass::kBackward, {path.rbegin(), path.rend()});
      missed += run_pass(book, Pass::kEvaluation, full);
    }
  }
  CHECK(missed == 0);
  CHECK(book.size() == 7);
}

TEST_CASE("trace: a departure goes on with a known path that began alike", "[engine][trace]") {
  TraceBook book;
  (void)run_pass(book, Pass::kForward, {0, 1, 2, 3, 4});
  (void)run_pass(book, Pass::kForward, {0, 2, 3, 4});
  // The path of the pass before is expected; the one departure costs one use.
  CHECK(run_pass(book, Pass::kForward, {0, 1, 2, 3, 4}) == 1);
  book.begin(Pass::kForward);
  CHECK(book.visit(0));
  CHECK_FALSE(book.visit(7));
  CHECK(expected(book).empty());
}

TEST_CASE("trace: the distance to the next use reaches into the pass that follows",
          "[engine][trace]") {
  TraceBook book;
  for (int step = 0; step < 2; ++step) {
    (void)run_pass(book, Pass::kForward, {0, 1, 2});
    (void)run_pass(book, Pass::kBackward, {2, 1, 0});
  }
  const auto ten = [](int /*unit*/) { return std::int64_t{10}; };
  book.begin(Pass::kForward);
  (void)book.visit(0);
  CHECK(book.distance(1, ten) == 0);
  CHECK(book.distance(0, ten) == 40);
  (void)book.visit(1);
  (void)book.visit(2);
  CHECK(book.distance(2, ten) == 0);
  CHECK(book.distance(1, ten) == 10);
  CHECK_FALSE(book.distance(9, ten).has_value());
}

TEST_CASE("trace: paths without end keep a bounded book", "[engine][trace]") {
  TraceBook book;
  for (int path = 0; path < 100; ++path) {
    (void)run_pass(book, Pass::kForward, {0, path, 1});
    (void)run_pass(book, Pass::kBackward, {1, path, 0});
  }
  CHECK(book.size() == 32);
  CHECK(run_pass(book, Pass::kForward, {0, 99, 1}) <= 1);
}
