// A cost as a tree of named terms: evaluating it gives a number, reading it says where the number comes from.
#pragma once

#include <string>
#include <vector>

#include "motley/base/value.hpp"

namespace motley {

enum class TermKind { leaf, sum, max };

struct Term {
  std::string name;
  double value = 0;
  std::string unit = "s";  // s, B or FLOP; one tree, one unit
  TermKind kind = TermKind::leaf;
  std::string note = {};  // the formula with its numbers
  std::vector<Term> children = {};
};

Term leaf(std::string name, double value, std::string note = {});
Term sum_of(std::string name, std::vector<Term> children, std::string note = {});
// The largest child counts; the others stay visible, to say how far they are from binding.
Term max_of(std::string name, std::vector<Term> children, std::string note = {});

// Throws an internal error where a node is not what its children make of it.
void check_consistent(const Term& term);

// {name, seconds, share, of: "sum" | "max", note, terms [...]}; shares are of `total` (a max's children may exceed it
// together).
Value term_json(const Term& term, double total);
// For people: "880 GFLOP".
std::string human_flop(double flop);

// `motley explain --json`: {total_s, terms [...]}.
Value explain_json(const Term& root);

}  // namespace motley
