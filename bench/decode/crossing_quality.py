"""What a model loses by the type of the activations between its stages: perplexity of a text, and the next tokens against those with fp32.

    crossing_quality.py MODEL [--stages N] [--text FILE] [--weight-type TYPE] [--chunks N] [--told N] [--asked N]

As kv_quality.py, with the layers divided evenly over the stages. It measures no time.
"""

import kv_quality
from kv_quality import engine


def main():
    parser = kv_quality.arguments(__doc__)
    parser.add_argument("--stages", type=int, default=3)
    options = parser.parse_args()

    def case(crossing_type, layers):
        cuts = [layers * i // options.stages for i in range(options.stages + 1)]
        return dict(crossing_type=crossing_type, layouts=[engine.chain(*[1] * options.stages, cuts=cuts)])

    types = {name: lambda layers, name=name: case(name, layers) for name in ["fp32", "bf16", "int8"]}
    kv_quality.measure(options, f"activations, {options.stages} stages", types)


if __name__ == "__main__":
    main()
