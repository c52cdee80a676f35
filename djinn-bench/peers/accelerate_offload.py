"""Hugging Face Accelerate: LlamaForCausalLM with a device map, as much on the device as the cap allows, the rest
offloaded to host memory and moved by Accelerate's hooks when it is used."""

import gc
import sys
import time

import peer

torch = peer.torch
try:
    import accelerate
    import transformers
except ImportError as missing:
    peer.unavailable(missing)


def config(shape):
    return transformers.LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.ffn,
        vocab_size=shape.vocab,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def place(name, device_map):
    """The device of a parameter: that of the longest module name that it begins with."""
    found = [key for key in device_map if key == "" or name == key or name.startswith(key + ".")]
    return device_map[max(found, key=len)]


def fill(model, device_map, device):
    """Gives every parameter random numbers, made on the device and copied around."""
    pattern = torch.empty(1 << 24, dtype=torch.float16, device=device).normal_(0, peer.DEVIATION)
    offloaded = 0
    for name, parameter in list(model.named_parameters()):
        to = place(name, device_map)
        value = torch.empty(parameter.shape, dtype=torch.float16, device="cpu" if to == "cpu" else device)
        flat = value.view(-1)
        for start in range(0, flat.numel(), pattern.numel()):
            piece = flat[start : start + pattern.numel()]
            piece.copy_(pattern[: piece.numel()])
        if parameter.dim() == 1:
            value.fill_(1)
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, torch.nn.Parameter(value, requires_grad=False))
        offloaded += value.numel() * 2 if to == "cpu" else 0
    return offloaded


def load(shape, device, room):
    """The model with `room` bytes of it on the device, and how many bytes are not."""
    with accelerate.init_empty_weights(include_buffers=False):
        model = transformers.LlamaForCausalLM(config(shape)).half().eval()
    if device.type == "cpu":
        device_map = {"": "cpu"}
    else:
        memory = {device.index or 0: room, "cpu": 1 << 50}
        device_map = accelerate.infer_auto_device_map(
            model, max_memory=memory, no_split_module_classes=["LlamaDecoderLayer"], dtype=torch.float16
        )
    if "disk" in device_map.values():
        raise RuntimeError("Accelerate wants to offload to disk")
    offloaded = fill(model, device_map, device)
    if device.type == "cuda":
        model = accelerate.dispatch_model(model, device_map=device_map, main_device=device.index or 0)
    return model, offloaded


class Stepping:
    """Keeps the KV cache of one generation."""

    def __init__(self, model, device):
        self.model, self.device, self.cache = model, device, None

    def step(self, tokens, start):
        if start == 0:
            self.cache = transformers.DynamicCache()
        ids = torch.tensor([tokens], device=self.device)
        out = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return out.logits[0, -1].argmax().item()


def main():
    began, args = time.perf_counter(), peer.arguments()
    torch.manual_seed(1)
    device, shape = torch.device(args.device), peer.Shape(args.model)
    limit = peer.cap(device, args.vram_gib)
    room = limit - shape.kv_bytes(args.prompt + args.tokens) - shape.work_bytes(args.prompt)
    while True:
        stepping = None
        try:
            model, offloaded = load(shape, device, room)
            stepping = Stepping(model, device)
            peer.generate(stepping.step, peer.prompt(shape, args.prompt), 2)
            break
        except torch.OutOfMemoryError:
            print(f"{room} bytes of weights do not fit", file=sys.stderr)
        room -= shape.block_bytes
        if room < 0:
            raise RuntimeError("the cap is too small")
        model = stepping = None
        gc.collect()
        torch.cuda.empty_cache()
    note = f"accelerate {accelerate.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    peer.report(stepping.step, args, shape, offloaded, device, began, note)


if __name__ == "__main__":
    main()
