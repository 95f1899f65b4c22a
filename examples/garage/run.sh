#!/usr/bin/env bash
# Plans the tales model over the garage's unlike devices, serves it with one CPU worker process per device, chats, and checks
# that the tokens equal those of the same model on a single device; then a worker is killed in the middle of an answer.
# `./dev demo` builds the programs first and runs this.
# With `--model MODEL`: another model, over the same devices with memories that grow with it (own_model.py).
set -euo pipefail
if [ "$#" -gt 0 ]; then
  exec /usr/bin/python3 "$(dirname "${BASH_SOURCE[0]}")/own_model.py" "$@"
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

motley=${MOTLEY:-build/release/motley}
model=data/models/tales
here=examples/garage
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

questions=(--message "Tell me a short story about a lantern and an owl." --message "Who helped the owl?" --message "What colour was the lantern?")
options=(--model "$model" --temperature 0 --max-answer-tokens 160)

title() { printf '\n== %s\n' "$*"; }

title "the plan: motley plan serve --cluster $here/cluster.toml --model $model ..."
"$motley" plan serve --cluster "$here/cluster.toml" --model "$model" --workload "$here/workload.toml" \
  --weight-type fp32 --max-tokens 64 --max-sequences 8 -o "$work/plan.json"
"$motley" verify "$work/plan.json"

title "the answer: motley chat plan.json ..."
"$motley" chat "$work/plan.json" "${options[@]}" "${questions[@]}" -o "$work/garage.json"

title "the same questions to the model on one device"
"$motley" plan serve --cluster "$here/one-device.toml" --model "$model" --workload "$here/workload.toml" \
  --weight-type fp32 --max-tokens 64 --max-sequences 8 -q -o "$work/one.json" >"$work/one.txt"
"$motley" chat "$work/one.json" "${options[@]}" "${questions[@]}" -q --json >"$work/one-device.json"

/usr/bin/python3 - "$work/garage.json" "$work/one-device.json" <<'PYTHON'
import json
import sys

split, single = (json.load(open(path)) for path in sys.argv[1:])
tokens = [turn["token_ids"] for turn in split]
count = sum(len(ids) for ids in tokens)
equal = count > 0 and tokens == [turn["token_ids"] for turn in single]
seconds = sum(turn["total_s"] for turn in split)
print(f"tokens equal: {'yes' if equal else 'NO'} ({count} tokens; {count / seconds:.1f} tokens/s over the split model)")
sys.exit(0 if equal else 1)
PYTHON

title "a worker is killed in the middle of an answer"
/usr/bin/python3 "$here/second_act.py" "$work/plan.json" "$model" 2>/dev/null
