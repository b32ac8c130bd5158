"""Calls Sluice with the clients of LangChain and LlamaIndex and checks the answers.

    BASE_URL=http://127.0.0.1:8080 MODELS="chat other" EMBED_MODEL=embed API_KEY=sk-… frameworks.py

The script prints "ok <check> of <model>" for every check. The first check that fails ends the script
with a line that says why. MODELS may have several models, because the import of the clients takes
long.
"""
import os
import sys

from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai_like import OpenAILike

URL, KEY, EMBED = (os.environ[n] for n in ("BASE_URL", "API_KEY", "EMBED_MODEL"))
QUESTION = "Tell me of the sea."


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "rain in " + city


def chat_of_langchain(chat):
    reply = chat.invoke(QUESTION)
    expect(reply.content and reply.usage_metadata["output_tokens"] > 0, reply)
    parts = list(chat.stream(QUESTION))
    expect(len(parts) > 2 and any(p.content for p in parts), parts)
    reply = chat.bind_tools([get_weather]).invoke("Use a tool to find the weather in Lisbon.")
    expect(reply.tool_calls and reply.tool_calls[0]["name"] == "get_weather", reply)


def check_langchain_openai():
    chat_of_langchain(ChatOpenAI(base_url=URL + "/v1", api_key=KEY, model=MODEL, max_retries=0, max_tokens=64))


def check_langchain_anthropic():
    chat_of_langchain(ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL, max_retries=0, max_tokens=64))


def check_langchain_embeddings():
    embeddings = OpenAIEmbeddings(base_url=URL + "/v1", api_key=KEY, model=EMBED, check_embedding_ctx_length=False, max_retries=0)
    vectors = embeddings.embed_documents(["the sea", "the sky"])
    expect(len(vectors) == 2 and len(vectors[0]) == len(vectors[1]) > 0, vectors)


def chat_of_llama_index(llm):
    expect(llm.complete(QUESTION).text, "no completion")
    expect(llm.chat([ChatMessage(role="user", content=QUESTION)]).message.content, "no chat")
    parts = list(llm.stream_chat([ChatMessage(role="user", content=QUESTION)]))
    expect(len(parts) > 2 and parts[-1].message.content, parts)


def check_llama_index_openai():
    chat_of_llama_index(OpenAILike(model=MODEL, api_base=URL + "/v1", api_key=KEY, is_chat_model=True, max_retries=0, max_tokens=32))


def check_llama_index_embeddings():
    vector = OpenAIEmbedding(model_name=EMBED, api_base=URL + "/v1", api_key=KEY, max_retries=0).get_text_embedding("the sea")
    expect(len(vector) > 0, vector)


for MODEL in os.environ["MODELS"].split():
    for name, check in [(n, f) for n, f in globals().copy().items() if n.startswith("check_")]:
        try:
            check()
        except Exception as e:
            sys.exit(f"FAILED {name} of {MODEL}: {type(e).__name__}: {e}")
        print("ok", name, "of", MODEL)
