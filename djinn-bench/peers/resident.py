"""Full residency: eager PyTorch with every weight on the device. Needs more memory than the cap: it is the bound, not
a rival."""

import time

import peer


class Resident(peer.Llama):
    def __init__(self, shape, device, context):
        super().__init__(shape, device, context)
        pattern = peer.random_block(shape, device)
        self.blocks = [shape.views(pattern.clone()) for _ in range(shape.layers)]

    def weights(self, layer):
        return self.blocks[layer]


def main():
    began, args = time.perf_counter(), peer.arguments()
    peer.torch.manual_seed(1)
    device, shape = peer.torch.device(args.device), peer.Shape(args.model)
    peer.cap(device, None)
    with peer.torch.inference_mode():
        model = Resident(shape, device, args.prompt + args.tokens + 1)
        note = f"all {shape.layers} blocks on the device, torch {peer.torch.__version__}"
        peer.report(model.step, args, shape, 0, device, began, note)


if __name__ == "__main__":
    main()
