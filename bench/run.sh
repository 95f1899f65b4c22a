#!/usr/bin/env bash
# Runs the benchmarks by name, all of them without a name; what follows `--` goes to the benchmark. See bench/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

names=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do names+=("$1") && shift; done
[ $# -eq 0 ] || shift
[ ${#names[@]} -gt 0 ] || names=(planning placement chain training training-joint simulating renting training-measured predicted mixtures steps steps-shared steps-measured planning-collectives collectives joining learning decode kv-types serving prefixes offload faults plans wan tls hop llama-rpc streams bodies)

for name in "${names[@]}"; do
  case $name in
    planning) build/release/bench/plan_serve_bench "$@" ;;
    chain) build/release/bench/chain_bench "$@" ;;
    training) build/release/bench/train_bench "$@" ;;
    placement) build/release/bench/placement_bench "$@" ;;
    simulating) build/release/bench/simulate_bench "$@" ;;
    predicted) build/release/bench/predicted_bench "$@" ;;
    mixtures) build/release/bench/mixture_bench "$@" ;;
    steps) build/release/bench/steps_bench "$@" ;;
    steps-shared) build/release/bench/shared_stages "$@" ;;
    steps-measured) build/release/bench/steps_measured "$@" ;;
    renting) build/release/bench/rent_bench "$@" ;;
    training-joint) build/release/bench/train_joint_bench "$@" ;;
    training-measured) build/release/bench/train_measured "$@" ;;
    planning-collectives) build/release/bench/collective_plan_bench "$@" ;;
    collectives) python3 bench/collectives/run.py "$@" ;;
    joining) build/release/bench/collectives/joining "$@" ;;
    learning) build/release/bench/collectives/learning "$@" ;;
    faults) python3 bench/machines/faults.py "$@" ;;
    join) .venv-reference/bin/python bench/machines/join.py "$@" ;;
    weight-lag) .venv-reference/bin/python bench/training/weight_lag.py "$@" ;;
    steps-trained) .venv-reference/bin/python bench/training/run.py "$@" ;;
    steps-predicted) .venv-reference/bin/python bench/training/predicted.py "$@" ;;
    steps-saved) .venv-reference/bin/python bench/training/saving.py "$@" ;;
    steps-two-sites) .venv-reference/bin/python bench/training/sites.py "$@" ;;
    losses) .venv-reference/bin/python bench/training/losses.py "$@" ;;
    recovery) .venv-reference/bin/python bench/machines/recovery.py "$@" ;;
    plans) python3 bench/machines/plans.py "$@" ;;
    wan) python3 bench/machines/wan.py "$@" ;;
    tls) python3 bench/machines/tls.py "$@" ;;
    hop)
      rate=${1:-1e8}
      MOTLEY_TEST_DEVICES=$PWD/build/release/libapart_device.so MOTLEY_APART_LATE_US=0 MOTLEY_APART_RATES="d2h=$rate,h2d=$rate" \
        build/release/crossing_check apart:0 apart:1 "$rate" ;;
    crossing) python3 bench/machines/crossing.py "$@" ;;
    llama-rpc) .venv-reference/bin/python bench/machines/llama_rpc.py "$@" ;;
    streams) python3 bench/streams/run.py "$@" ;;
    bodies) python3 bench/bodies/run.py "$@" ;;
    serving) .venv-reference/bin/python bench/decode/serving.py "$@" ;;
    prefixes) .venv-reference/bin/python bench/decode/prefixes.py "$@" ;;
    offload-placements) .venv-reference/bin/python bench/offload/placements.py "$@" ;;
    offload-schedules) .venv-reference/bin/python bench/offload/schedules.py "$@" ;;
    offload) .venv-reference/bin/python bench/offload/run.py "$@" ;;
    kv-types) .venv-reference/bin/python bench/decode/kv_types.py "$@" ;;
    decode) .venv-reference/bin/python bench/decode/run.py "$@" ;;
    *) printf 'error: there is no benchmark "%s"\n\nhint: known: planning, placement, chain, training, training-joint, simulating, renting, training-measured, predicted, mixtures, steps, steps-shared, steps-measured, planning-collectives, collectives, joining, learning, decode, kv-types, serving, prefixes, offload, offload-placements, offload-schedules, faults, join, recovery, steps-trained, weight-lag, steps-predicted, steps-saved, steps-two-sites, losses, plans, wan, tls, crossing, hop, llama-rpc, streams, bodies\n' "$name" >&2; exit 2 ;;
  esac
done
