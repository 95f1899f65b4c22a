"""Data-parallel training in a group whose workers come and go:

    from motley.elastic import Elastic

    elastic = Elastic(["127.0.0.1:4700"], {"model": net, "optimizer": optimizer}, group="run", token=token)
    model = elastic.wrap(net)                    # DistributedDataParallel

    while step < steps:
        def compute(group):                      # the members of this attempt: group.rank, group.size, group.step
            optimizer.zero_grad()
            loss(model(batch(group))).backward()

        outcome = elastic.run(compute)           # again with those that are left, until all members vouch for the step
        if outcome.committed:
            optimizer.step()
            step = outcome.step

A worker that dies costs the step that was under way, and only that; one that joins is given the state of model and optimizer.
`compute` may run several times for one step, and must begin with zero_grad().

Elastic(..., share=0.08): a joiner is given the state while the others go on, for 8 % of the steps' time. A worker then shares
the batch by group.place of group.contributors, not by rank and size: who is still learning computes like the others, but its
gradients do not count. What it adds to other operations must be zero where group.contributes is False.
"""

import datetime
import io

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from motley.comm import CollectiveError, Session
from motley.items import ParameterItems
from motley.torch import ProcessGroupMotley, all_reduce_mean


class Elastic:
    """`parts`: what makes up the state, by name; each has state_dict() and load_state_dict().

    With `share`, joiners are given a parameter after the other, with its moments, for that share of the steps' time. It is a promise:
    an optimizer changes a parameter depending on this parameter, its moments and its gradient alone (which clipping by the norm
    of all gradients does not break), and what else there is changes alike in all workers. A state that breaks it is given once
    more, at once."""

    def __init__(self, coordinators, parts, *, share=None, **options):
        self._parts, self._group, self._failure, self._held = parts, None, None, 0
        self._items = ParameterItems(parts) if share else None
        state = {"items": self._items, "share": share} if share else {"state": self}
        self._session = Session(coordinators, **state, **options)

    # ---- the state, as the session asks for it ----

    def save(self):
        file = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self._parts.items()}, file)
        return file.getvalue()

    def load(self, data):
        for name, state in torch.load(io.BytesIO(data), weights_only=True).items():
            self._parts[name].load_state_dict(state)

    # ---- gradients ----

    def wrap(self, module, **options):
        """DistributedDataParallel over `module`, whose gradients are averaged over the members of the step."""
        # A group of this process alone takes what DDP exchanges when it is made: at that time the others may be training.
        alone = ProcessGroupMotley(dist.HashStore(), 0, 1, datetime.timedelta(seconds=60))
        # Looking for unused parameters keeps DDP from cutting its buckets again after the first step: those of a joiner would
        # be others than those of who is there.
        model = DistributedDataParallel(module, process_group=alone, **options | {"find_unused_parameters": True})
        model.register_comm_hook(self, Elastic._average)
        return model

    def _average(self, bucket):
        """After a failure the rest of the backward pass runs on without the others: its gradients are thrown away."""
        gradients = bucket.buffer()
        if self._failure is None:
            try:
                all_reduce_mean(self._group, gradients)
            except CollectiveError as failure:
                self._failure = failure
        done = torch.futures.Future()
        done.set_result(gradients)
        return done

    # ---- steps ----

    def run(self, compute, timeout_s=60.0):
        def attempt(group):
            self._group, self._failure, self._held = group, None, group.items
            try:
                compute(group)
            finally:
                self._group = None
            if self._failure is not None:
                raise self._failure

        outcome = self._session.run(attempt, timeout_s)
        if outcome.committed and self._items:
            self._items.skip_from(self._held)
        return outcome

    def leave(self, timeout_s=10.0):
        return self._session.leave(timeout_s)

    def close(self):
        self._session.close()
