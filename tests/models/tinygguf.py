"""tinygguf.py OUT.gguf [rerank | embed]: writes a llama model with random weights (half a megabyte) for tests of a real engine.

The model generates random ASCII text up to its token limit. Its tokens are single bytes, so that the tokens of prompts and
answers can be counted by hand. With `rerank` the script writes a Qwen3 model with a classifier head for yes and no, as the
rerankers of that family have. Without such a head, llama.cpp returns uninitialised memory as scores. With `embed` the model says
how its vectors are pooled, as models for embeddings do.
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
LABELS = ["yes", "no"]


def byte_alphabet():
    """Returns GPT-2's names of the 256 bytes: printable bytes are themselves, the others are code points from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]


VOCABULARY = SPECIAL + byte_alphabet() + ["th"]  # llama.cpp requires at least one merge


def add_shape(w):
    w.add_name("tiny-random")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(DIM)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(HEADS)
    w.add_rope_dimension_count(DIM // HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(len(VOCABULARY))
    w.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_tokenizer(w):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(VOCABULARY)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    w.add_token_types([control] * len(SPECIAL) + [normal] * (len(VOCABULARY) - len(SPECIAL)))
    w.add_token_merges(["t h"])
    w.add_pad_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(True)
    w.add_chat_template(TEMPLATE)


def tensors(rerank):
    """Yields each name with its weights.

    The first dimension is the same for all that is read, and no layer adds to it. So the last
    matrix can forbid tokens by it. It forbids those that end an answer, and halves of characters.
    """
    random = np.random.default_rng(7)

    def weights(*shape):
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    def ones(n):
        return np.ones(n, dtype=np.float32)

    def steady(*shape):
        matrix = weights(*shape)
        matrix[0, :] = 0
        return matrix

    read, said = weights(len(VOCABULARY), DIM), weights(len(VOCABULARY), DIM)
    read[:, 0] = 0.1
    said[[i for i, token in enumerate(VOCABULARY) if token in SPECIAL or not token.isascii()], 0] = -20
    yield "token_embd.weight", read
    yield "output_norm.weight", ones(DIM)
    yield "output.weight", said
    if rerank:
        yield "cls.output.weight", weights(len(LABELS), DIM)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", ones(DIM)
        for name in ("attn_q", "attn_k", "attn_v"):
            yield block + name + ".weight", weights(DIM, DIM)
        if rerank:
            yield block + "attn_q_norm.weight", ones(DIM // HEADS)
            yield block + "attn_k_norm.weight", ones(DIM // HEADS)
        yield block + "attn_output.weight", steady(DIM, DIM)
        yield block + "ffn_norm.weight", ones(DIM)
        yield block + "ffn_gate.weight", weights(FFN, DIM)
        yield block + "ffn_up.weight", weights(FFN, DIM)
        yield block + "ffn_down.weight", steady(DIM, FFN)


def main(path, rerank=False, embed=False):
    arch = "qwen3" if rerank else "llama"
    w = gguf.GGUFWriter(path, arch)
    add_shape(w)
    add_tokenizer(w)
    if rerank:
        w.add_array(f"{arch}.classifier.output_labels", LABELS)
    if embed:
        w.add_pooling_type(gguf.PoolingType.MEAN)
    for name, weights in tensors(rerank):
        w.add_tensor(name, weights)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main(sys.argv[1], "rerank" in sys.argv[2:], "embed" in sys.argv[2:])
