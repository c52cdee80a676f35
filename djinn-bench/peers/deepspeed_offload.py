"""DeepSpeed, ZeRO-Inference: ZeRO stage 3 with parameters offloaded to pinned host memory, gathered and prefetched when
they are used. Stage 3 keeps no fixed share of the weights on the device: all but the smallest cross in every pass."""

import contextlib
import os
import socket
import time

import peer

torch = peer.torch
try:
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        import deepspeed
    import transformers

    import accelerate_offload
except ImportError as missing:
    peer.unavailable(missing)

# Parameters that may be on the device at once, and that are fetched ahead, in blocks.
LIVE_BLOCKS = 4
PREFETCH_BLOCKS = 2


def single_process():
    """This process is the whole group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in group.items()})


def settings(shape, on_gpu):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "fp16" if on_gpu else "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu", "pin_memory": on_gpu},
            "stage3_max_live_parameters": LIVE_BLOCKS * shape.block_numel,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": PREFETCH_BLOCKS * shape.block_numel,
            "stage3_param_persistence_threshold": 2 * shape.hidden,
        },
        "steps_per_print": 1 << 30,
    }


def main():
    began, args = time.perf_counter(), peer.arguments()
    torch.manual_seed(1)
    device, shape = torch.device(args.device), peer.Shape(args.model)
    peer.cap(device, args.vram_gib)
    single_process()
    config = settings(shape, device.type == "cuda")
    with contextlib.redirect_stdout(open(os.devnull, "w")):
        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")
        # DeepSpeed has no f16 on the CPU.
        dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
        with deepspeed.zero.Init(config_dict_or_path=config, dtype=dtype):
            model = transformers.LlamaForCausalLM(accelerate_offload.config(shape)).eval()
        engine = deepspeed.initialize(model=model, config=config)[0]
    engine.module.eval()
    # A parameter's bytes lie on the host in every pass, but for those that persist on the device.
    moved = [p.ds_numel * 2 for p in model.parameters() if p.ds_numel > 2 * shape.hidden]
    stepping = accelerate_offload.Stepping(engine.module, device)
    note = f"deepspeed {deepspeed.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    with torch.no_grad():
        peer.report(stepping.step, args, shape, sum(moved), device, began, note)


if __name__ == "__main__":
    main()
