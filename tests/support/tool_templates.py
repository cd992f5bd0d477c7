# ruff: noqa: E501
"""Chat templates with tools, written by hand in the manner of each family, over a tokenizer of bytes that knows their control tokens."""

from __future__ import annotations

from typing import Any

from chat_model import bytes_tokenizer
from tokenizers import AddedToken

SPECIAL = ("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[INST]", "[/INST]", "<|eot_id|>",
           "<|python_tag|>", "<|start_header_id|>", "<|end_header_id|>", "<|call|>", "<|sep|>", "<|callend|>", "<|out|>", "<|outend|>")  # fmt: skip
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # single tokens that are not special, as in Qwen's tokenizers

QWEN = """{%- if messages[0].role == 'system' %}{%- set first = messages[0].content %}{%- else %}{%- set first = 'You are helpful.' %}{%- endif %}
{{- '<|im_start|>system\n' + first }}{%- if tools %}{{- '\n\n# Tools\n<tools>' }}{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools>\nReturn <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>' }}{%- endif %}{{- '<|im_end|>\n' }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant' }}{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls %}{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

LLAMA3 = """{%- if messages[0].role == 'system' %}{%- set first = messages[0].content | trim %}{%- set messages = messages[1:] %}{%- else %}{%- set first = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' + first + '<|eot_id|>' }}
{%- for message in messages %}{%- if message.role == 'user' and loop.first and tools %}
{{- '<|start_header_id|>user<|end_header_id|>\n\nAnswer with {"name": name, "parameters": object}.\n\n' }}{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}{{- message.content | trim + '<|eot_id|>' }}
{%- elif message.tool_calls %}{%- if message.tool_calls | length != 1 %}{{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
{%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}
{%- else %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

MISTRAL = """{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}{%- if message.role == 'system' %}{{- raise_exception('no system messages here') }}
{%- elif message.role == 'user' %}{%- if tools and message == users[-1] %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}{{- '[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}{%- if call.id | length != 9 %}{{- raise_exception('Tool call IDs should be 9 long') }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + ', "id": "' + call.id + '"}' }}{{- ', ' if not loop.last else ']' }}{%- endfor %}{{- '<|im_end|>' }}
{%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{- ' ' + message.content + '<|im_end|>' }}{%- endif %}{%- endfor %}"""

NAMED = """{%- if tools %}{{- '<|im_start|>tools\n' + tools | tojson + '<|im_end|>\n' }}{%- endif %}{%- for message in messages %}
{%- if message.tool_calls %}{{- '<|im_start|>assistant\n' }}{%- for call in message.tool_calls %}{{- '<|call|>' + call.function.name + '<|sep|>' + call.function.arguments + '<|callend|>' }}{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}{{- '<|out|>' + message.content + '<|outend|>' }}
{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

THINKING = QWEN.replace("{{- '<|im_start|>assistant\n' }}{%- endif %}", "{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}")

XML = QWEN.replace(
    """{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}{{- '}""",
    "<function=' + call.function.name + '>' }}{%- for key in call.function.arguments %}{{- '<parameter=' + key + '>' + call.function.arguments[key] }}{%- endfor %}{{- '",
)

FAMILIES = {"qwen": QWEN, "llama3": LLAMA3, "mistral": MISTRAL, "named": NAMED, "thinking": THINKING}


def tool_tokenizer(template: str) -> Any:
    """Bytes, the end of a reply, and the control tokens of all families."""
    words = bytes_tokenizer()
    words.add_special_tokens({"extra_special_tokens": ["<|im_start|>", *SPECIAL]})
    words.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    words.chat_template = template
    return words
