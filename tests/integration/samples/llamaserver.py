"""A real llama.cpp server with a tiny model of random weights: the protocol is real, its forecasts are not.

`python -m tests.integration.samples.llamaserver FILE` writes the model to FILE, prints its address and serves until it
is killed. The packages `xllamacpp` and `gguf` are needed, which are not among those of the project.
"""

from __future__ import annotations

import signal
import sys

import gguf  # type: ignore[import-not-found]
import numpy as np
import xllamacpp  # type: ignore[import-not-found]

_VOCABULARY, _WIDTH, _INNER, _HEADS, _LAYERS = 300, 64, 128, 4, 2
_UNKNOWN, _CONTROL, _NORMAL, _BYTE = 2, 3, 1, 6


def write_model(file: str) -> None:
    """Tokens are bytes, digits and some made-up words."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(_VOCABULARY)
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256)), "\u2581".encode()]
    tokens += [b"%d" % digit for digit in range(10)]
    tokens += [b"t%d" % number for number in range(_VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * _VOCABULARY)
    writer.add_token_types([_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * (_VOCABULARY - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = random.normal(0, 0.3, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", _VOCABULARY, _WIDTH)
    add("output", _VOCABULARY, _WIDTH)
    add("output_norm", _WIDTH)
    for layer in range(_LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}", _WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}", _WIDTH, _WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}", _INNER, _WIDTH)
        add(f"blk.{layer}.ffn_down", _WIDTH, _INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """See above."""
    file = sys.argv[1]
    write_model(file)
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel = 8192, 2
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    print(f"address {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
