"""What of repeated times counts: what others do on a machine makes them longer, never shorter."""


def typical(values):
    """The first quartile, as `motley cluster probe` has it."""
    return sorted(values)[len(values) // 4]
