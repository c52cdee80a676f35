"""Blocking offload: whole blocks, as many on the device as the cap allows; the others are copied from pinned memory
into one buffer right before their use, while the host waits and nothing computes."""

import peer


class Blocking(peer.Offloaded):
    def __init__(self, shape, device, context, resident):
        super().__init__(shape, device, context, resident)
        self.place = {layer: row for row, layer in enumerate(self.streamed)}
        self.buffer = peer.torch.empty(shape.block_numel, dtype=peer.torch.float16, device=device)
        self.current = shape.views(self.buffer)

    def weights(self, layer):
        if layer in self.resident:
            return self.resident[layer]
        self.buffer.copy_(self.host.tensor[self.place[layer]])
        if self.device.type == "cuda":
            peer.torch.cuda.synchronize()
        return self.current


if __name__ == "__main__":
    peer.run(Blocking, slots=1)
