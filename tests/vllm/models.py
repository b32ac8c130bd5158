"""models.py DIR: models of random weights for tests of a real vLLM: DIR/llama, an adapter for it in DIR/lora, and DIR/whisper.

The llama is the one of tests/models: nonsense in ASCII, a token for each byte, and no end before what was allowed. The adapter makes it
speak another nonsense. The whisper has no weights: vLLM makes them up when it is told to (load_format: dummy).
"""
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

DIM, FFN, LAYERS, HEADS, CONTEXT, RANK = 64, 128, 2, 2, 4096, 8
SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def write(path, content):
    path.write_text(json.dumps(content, indent=1))


def byte_tokenizer(vocabulary):
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def normal(random, *shape):
    return (random.standard_normal(shape) * 0.05).astype(np.float32)


def llama_weights(vocabulary):
    """As in tests/models/tinygguf.py: the first dimension is steady, and forbids ends and halves of characters."""
    random = np.random.default_rng(7)
    ones = np.ones(DIM, dtype=np.float32)

    def steady(*shape):
        matrix = normal(random, *shape)
        matrix[0, :] = 0
        return matrix

    read, said = normal(random, len(vocabulary), DIM), normal(random, len(vocabulary), DIM)
    read[:, 0] = 0.1
    said[[i for i, token in enumerate(vocabulary) if token in SPECIAL or not token.isascii()], 0] = -20
    weights = {"model.embed_tokens.weight": read, "model.norm.weight": ones, "lm_head.weight": said}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        weights[block + "input_layernorm.weight"] = weights[block + "post_attention_layernorm.weight"] = ones.copy()
        for name in ("q_proj", "k_proj", "v_proj"):
            weights[f"{block}self_attn.{name}.weight"] = normal(random, DIM, DIM)
        weights[block + "self_attn.o_proj.weight"] = steady(DIM, DIM)
        weights[block + "mlp.gate_proj.weight"] = normal(random, FFN, DIM)
        weights[block + "mlp.up_proj.weight"] = normal(random, FFN, DIM)
        weights[block + "mlp.down_proj.weight"] = steady(DIM, FFN)
    return weights


def make_llama(folder):
    folder.mkdir(parents=True)
    vocabulary = SPECIAL + BYTES
    tokenizer = byte_tokenizer(vocabulary)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>",
        "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE})
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    write(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": DIM, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": DIM // HEADS,
        "vocab_size": len(vocabulary), "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", **ends})
    write(folder / "generation_config.json", ends)
    save_file(llama_weights(vocabulary), folder / "model.safetensors", metadata={"format": "pt"})


def make_lora(folder):
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    weights = {}
    for layer in range(LAYERS):
        for name in ("q_proj", "v_proj"):
            part = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            weights[part + "lora_A.weight"] = random.standard_normal((RANK, DIM)).astype(np.float32)
            weights[part + "lora_B.weight"] = random.standard_normal((DIM, RANK)).astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors")
    write(folder / "adapter_config.json", {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj", "v_proj"],
        "bias": "none", "base_model_name_or_path": "tiny"})


def make_whisper(folder):
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperTokenizerFast

    languages = [f"<|{code}|>" for code in ("en", "de", "fr", "es", "zh")]
    times = [f"<|{i * 0.02:.2f}|>" for i in range(1501)]
    end, start = "<|endoftext|>", "<|startoftranscript|>"
    vocabulary = BYTES + [end, start, *languages, "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>",
                          "<|notimestamps|>", *times]
    WhisperTokenizerFast(tokenizer_object=byte_tokenizer(vocabulary), bos_token=end, eos_token=end, unk_token=end,
                         pad_token=end).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    extractor = folder / "preprocessor_config.json"
    write(extractor, {**json.loads(extractor.read_text()), "processor_class": "WhisperProcessor"})
    end_id = vocabulary.index(end)
    ends = {"bos_token_id": end_id, "eos_token_id": end_id, "pad_token_id": end_id, "decoder_start_token_id": vocabulary.index(start)}
    WhisperConfig(
        vocab_size=len(vocabulary), d_model=DIM, encoder_layers=1, decoder_layers=1, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=FFN, decoder_ffn_dim=FFN, max_source_positions=1500, max_target_positions=448,
        architectures=["WhisperForConditionalGeneration"], torch_dtype="float32", **ends).save_pretrained(folder)
    GenerationConfig(max_length=448, **ends).save_pretrained(folder)


def main(folder):
    make_llama(folder / "llama")
    make_lora(folder / "lora")
    make_whisper(folder / "whisper")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
