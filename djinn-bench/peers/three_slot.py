"""Asynchronous offload: whole blocks, as many on the device as the cap allows; the others go through three reusable
slots, copied from pinned memory on a stream of their own, ordered by events alone, into the next token's pass as
well."""

import contextlib

import peer

SLOTS = 3


class ThreeSlot(peer.Offloaded):
    def __init__(self, shape, device, context, resident):
        super().__init__(shape, device, context, resident)
        torch = peer.torch
        self.gpu = device.type == "cuda"
        self.slots = [torch.empty(shape.block_numel, dtype=torch.float16, device=device) for _ in range(SLOTS)]
        self.views = [shape.views(slot) for slot in self.slots]
        self.copies = torch.cuda.Stream(device) if self.gpu else None
        if self.gpu:
            self.ready = [torch.cuda.Event() for _ in range(SLOTS)]
            self.done = [torch.cuda.Event() for _ in range(SLOTS)]
            torch.cuda.synchronize()
        # Uses of streamed blocks so far, over all passes.
        self.uses = 0
        for use in range(SLOTS):
            self.fetch(use)

    def fetch(self, use):
        """Enqueues the copy for the streamed use number `use`."""
        slot, row = use % SLOTS, self.host.tensor[use % len(self.streamed)]
        if self.gpu and use >= SLOTS:
            self.copies.wait_event(self.done[slot])
        with peer.torch.cuda.stream(self.copies) if self.gpu else contextlib.nullcontext():
            self.slots[slot].copy_(row, non_blocking=True)
        if self.gpu:
            self.ready[slot].record(self.copies)

    def weights(self, layer):
        if layer in self.resident:
            return self.resident[layer]
        slot = self.uses % SLOTS
        if self.gpu:
            peer.torch.cuda.current_stream().wait_event(self.ready[slot])
        return self.views[slot]

    def used(self, layer):
        if layer in self.resident:
            return
        if self.gpu:
            self.done[self.uses % SLOTS].record(peer.torch.cuda.current_stream())
        self.fetch(self.uses + SLOTS)
        self.uses += 1


if __name__ == "__main__":
    peer.run(ThreeSlot, slots=SLOTS)
