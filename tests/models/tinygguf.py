"""tinygguf.py OUT.gguf: a llama model of random weights, half a megabyte, for tests of a real engine.

It speaks nonsense. Its tokens are single bytes, so that prompts and answers can be counted by hand.
"""
import sys

import gguf
import numpy as np

DIM, FFN, LAYERS, HEADS, CONTEXT = 64, 128, 2, 2, 4096
SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_alphabet():
    """GPT-2's names for the 256 bytes: printable ones stand for themselves, the others for code points from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]


def main(path):
    vocab = SPECIAL + byte_alphabet() + ["th"]  # llama.cpp wants one merge at least
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("tiny-random")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(DIM)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(HEADS)
    w.add_rope_dimension_count(DIM // HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(len(vocab))
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(vocab)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    w.add_token_types([control] * len(SPECIAL) + [normal] * (len(vocab) - len(SPECIAL)))
    w.add_token_merges(["t h"])
    w.add_pad_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(True)
    w.add_chat_template(TEMPLATE)

    random = np.random.default_rng(7)

    def weights(*shape):
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    def ones(n):
        return np.ones(n, dtype=np.float32)

    w.add_tensor("token_embd.weight", weights(len(vocab), DIM))
    w.add_tensor("output_norm.weight", ones(DIM))
    w.add_tensor("output.weight", weights(len(vocab), DIM))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        w.add_tensor(block + "attn_norm.weight", ones(DIM))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            w.add_tensor(block + name + ".weight", weights(DIM, DIM))
        w.add_tensor(block + "ffn_norm.weight", ones(DIM))
        w.add_tensor(block + "ffn_gate.weight", weights(FFN, DIM))
        w.add_tensor(block + "ffn_up.weight", weights(FFN, DIM))
        w.add_tensor(block + "ffn_down.weight", weights(DIM, FFN))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main(sys.argv[1])
