"""An agent's loop with langchain-openai: a call, its result, an answer; a stream; an object."""

import os

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

QUESTION = "What is the capital of France?"
model = ChatOpenAI(
    model="smollm2", base_url=os.environ["DJINN_URL"] + "/v1", api_key="none", temperature=0, max_tokens=96, max_retries=0
)


class City(BaseModel):
    """A schema whose every answer is short."""

    is_capital: bool


@tool
def capital(of_france: bool) -> str:
    """Looks up a capital."""
    return "Paris" if of_france else "Rome"


def test_an_agent_calls_a_tool_and_reads_its_result():
    messages = [HumanMessage(QUESTION)]
    called = model.bind_tools([capital], tool_choice="required").invoke(messages)
    messages.append(called)
    assert called.tool_calls
    for call in called.tool_calls:
        result = capital.invoke(call)
        assert isinstance(result, ToolMessage) and result.content in ("Paris", "Rome")
        messages.append(result)
    answer = model.bind_tools([capital]).invoke(messages)
    assert answer.usage_metadata["input_tokens"] > called.usage_metadata["input_tokens"]


def test_a_demanded_call_streams():
    whole = None
    for chunk in model.bind_tools([capital], tool_choice="capital").stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert [call["name"] for call in whole.tool_calls] == ["capital"]


def test_an_answer_streams():
    assert "Paris" in "".join(chunk.text for chunk in model.stream(QUESTION))


def test_an_object_is_answered():
    assert isinstance(model.with_structured_output(City, method="json_schema").invoke(QUESTION), City)
