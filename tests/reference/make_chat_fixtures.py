#!/usr/bin/env python3
"""Makes tests/fixtures/generate/chat.json: what transformers makes of chat templates.

"templates": templates in the manner of well-known models (written for this file, not copied), each with
what apply_chat_template gives for each of "conversations", or "error" where the template refuses it.
"snippets": pieces of Jinja, and what transformers' environment (Jinja2, with trim_blocks and lstrip_blocks)
makes of them, given the values in "values".
"""

import json
import pathlib

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
BOS, EOS = "<s>", "</s>"


def turn(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = [
    [turn("user", "What is a kettle?")],
    [turn("system", "You are terse."), turn("user", "  What is a kettle?\n")],
    [turn("user", "Hi"), turn("assistant", " Hello! "), turn("user", "Tea or café? 茶")],
    [turn("system", ""), turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", "d")],
    [turn("user", "two"), turn("user", "in a row")],
    [turn("assistant", "first")],
    [turn("critic", "Hmm, \"quoted\" {{ braces }} <tags> & \\slashes\\")],
    [],
]

TEMPLATES = {
    # The default of OpenAI's markup, with a system prompt of its own.
    "chatml": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
              "{{ '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}{% endif %}"
              "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    # Zephyr and TinyLlama: tags on lines of their own.
    "zephyr": """{% for m in messages %}
{% if m['role'] == 'user' %}
{{ '<|user|>\\n' + m['content'] + eos_token }}
{% elif m['role'] == 'system' %}
{{ '<|system|>\\n' + m['content'] + eos_token }}
{% elif m['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + m['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
""",
    # Llama 2: the system prompt inside the first user's turn, turns that alternate.
    "llama2": "{% if messages and messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
              "{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = false %}{% endif %}"
              "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
              "{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
              "{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}"
              "{% else %}{% set content = m['content'] %}{% endif %}"
              "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
              "{% elif m['role'] == 'system' %}{{ '<<SYS>>\\n' + content.strip() + '\\n<</SYS>>\\n\\n' }}"
              "{% elif m['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    # Llama 3: a header for each turn, the BOS in front of the first.
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}"
              "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}"
              "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    # Llama 3.1 and 3.2: a date, tools that are not there, white space control everywhere.
    "llama31": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message goes first, whether there is one or not. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    # Mistral v0.3: counting with a namespace, filters over the messages.
    "mistral": """{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    # Vicuna: plain words and a running separator.
    "vicuna": "{% if messages and messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set start = 1 %}"
              "{% else %}{% set system = 'A chat.' %}{% set start = 0 %}{% endif %}{{ system }}"
              "{% for m in messages[start:] %}{{ ' ' if loop.first else '' }}"
              "{{ (m.role | upper) ~ ': ' ~ m.content.strip() ~ (eos_token if m.role == 'assistant' else ' ') }}{% endfor %}"
              "{{ 'ASSISTANT:' if add_generation_prompt }}",
    # With a macro, a block for the loss mask, and blocks that catch what they write.
    "macro": """{%- macro header(role, end='\\n') -%}
<|{{ role | default('nobody', true) }}|>{{ end }}
{%- endmacro -%}
{%- for message in messages if message.content -%}
  {%- set body %}{{ message.content | trim }}<|end|>
{% endset -%}
  {%- if message.role == 'assistant' -%}
    {{ header(message.role) }}{% generation %}{{ body }}{% endgeneration %}
  {%- else -%}
    {{ header(role=message.role, end=' ') + body }}
  {%- endif -%}
{%- else -%}
nothing said
{%- endfor -%}
{%- if add_generation_prompt %}{{ header('assistant') }}{% endif -%}
""",
}

VALUES = {"text": "  Tea for Two, café! ", "n": 7, "none": None, "f": 2.5, "yes": True,
          "list": ["b", "a", "c"], "numbers": [3, 1, 2], "empty": [], "word": "straße",
          "table": {"b": 1, "a": "x", "c": [1, 2.0, None, True, {"k": "\u00e9\"'\n"}]},
          "messages": [turn("user", "u1"), turn("assistant", "a1"), turn("user", "u2")]}

SNIPPETS = [
    # Text, tags and white space.
    "plain", "", "\n", "a\n", "a\n\n", "a\r\nb\rc", "{", "{ {", "a { b } %} }} c", "{{ '{{' }}", "{# c #}x", "a{#- c -#} b",
    "a\n  {# c #}\n  b", "  {% if yes %}\n  x\n  {% endif %}\ny", "  {%+ if yes %}x{% endif +%}\n y", "a \n {%- if yes -%} \n b {%- endif %} c",
    "a {{- 'b' -}} c", "a\n{{ 'b' }}\nc", "a\n  {{ 'b' }}\n  c", "{% raw %}{{ x }}{% if %}{% endraw %}!", "a\n  {% raw %}\n {{ }} \n  {% endraw %}\nb",
    "{%- raw -%}  x  {%- endraw -%}  y", "{%if yes%}x{%endif%}", "{{'a'}}{{\"b\"}}", "{{ 'it''s' }}", "{{ 'a' \"b\" }}",
    "{{ 'a\\n\\t\\\\\\'\\\"\\x41\\u00e9\\U0001F600\\q' }}", "{% if yes %}\n\n\nx{% endif %}", "x {% if yes %}y{% endif %}\n\nz", "{{ n }}\n",
    "{#- a -#}\n{# b -#}\n x", "a {#+ b +#}\n c", "\t{% if yes %}x{% endif %}", "x\n \t {%- if yes %} y{% endif %}",
    # Values and operators.
    "{{ 1 + 2 * 3 - 4 / 2 }}", "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}", "{{ 1.5 + 1 }} {{ 1e3 }} {{ 2.0 }} {{ 1_000 }}",
    "{{ -n }} {{ +n }} {{ - 2 * 3 }} {{ 3 - -2 }}", "{{ 'a' ~ 1 ~ none ~ true }}", "{{ 'ab' * 3 }}", "{{ [1] + [2, 3] }}", "{{ true }} {{ False }} {{ None }}",
    "{{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'b' }} {{ [1, 2] == [1, 2] }} {{ none == none }}", "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ 2 >= 2 }} {{ 3 != 4 }}",
    "{{ 'a' in 'cat' }} {{ 'x' not in list }} {{ 'b' in table }} {{ 3 in numbers }} {{ 'x' in missing }}", "{{ not yes }} {{ not not yes }} {{ not yes or yes and false }}",
    "{{ 1 and 2 }} {{ 0 or 'x' }} {{ '' or none or 'y' }}", "{{ 'a' if yes else 'b' }} {{ 'a' if not yes else 'b' if n == 7 else 'c' }}[{{ 'a' if not yes }}]",
    "{{ [1, 'a', 2.5, none, true] }}", "{{ {'a': 1, 'b': [1], 'a': 2} }}", "{{ (1, 2)[1] }} {{ (3) }} {{ [] }} {{ {} }}", "{{ \"it's\" ~ ['it\\'s', 'q\"q', 'a\\nb\\\\'] }}",
    "{{ table }}", "[{{ missing }}]", "{{ none }}", "{{ 10000000000 * 10 }}", "{{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 4 / 2 }}", "{{ {'a': {'b': {}}} }}", "{{ {'a': 1}['a'] }}",
    # Access.
    "{{ list[0] }}{{ list[-1] }}{{ list.1 }}[{{ list[9] }}]", "{{ table['a'] }} {{ table.a }} {{ table.c[4].k | length }}[{{ table.zz }}][{{ table['zz'] }}]",
    "{{ messages[0].role }} {{ messages[-1]['content'] }}", "{{ list[1:] }} {{ list[:-1] }} {{ list[::-1] }} {{ list[::2] }} {{ list[-2:] }} {{ list[5:] }} {{ list[2:0:-1] }}",
    "{{ word[4] }} {{ word[:4] }} {{ word[::-1] }} {{ word[-2:] }}", "{{ messages[1:][0].content }}", "{{ text.strip().upper() }}", "{{ 'a b'.split()[1] }}",
    # Strings.
    "[{{ text | trim }}][{{ text.lstrip() }}][{{ text.rstrip() }}][{{ 'xxaxx'.strip('x') }}][{{ '--a-' | trim('-') }}]", "{{ text | upper }}{{ text | lower }}",
    "{{ 'hello wORLD' | capitalize }} {{ 'hello wORLD-and (more)' | title }} {{ 'heLLo'.capitalize() }}", "{{ 'a-b-c'.replace('-', '+') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'abc'.replace('', '.') }}",
    "{{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }}", "{{ ', '.join(list) }} {{ list | join('-') }} {{ numbers | join }}",
    "{{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ 'banana'.count('an') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('bc') }}",
    "{{ word | length }} {{ list | count }} {{ table | length }} {{ '' | length }}", "{{ word | list }} {{ table | list }}", "{{ word | first }}{{ word | last }}{{ list | first }}{{ list | last }}",
    "{{ list | reverse | list }} {{ 'abc' | reverse }}", "{{ 3 | string + '!' }} {{ '42' | int + 1 }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 2.9 | int }} {{ 2 | float }} {{ -3 | abs }}",
    "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(1, blank=true) }}", "{{ text | safe }}",
    # Defaults, tests.
    "{{ missing | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | d('x', boolean=true) }}[{{ missing | default }}]",
    "{{ yes is defined }} {{ missing is defined }} {{ missing is not defined }} {{ missing is undefined }} {{ none is none }} {{ 0 is none }}",
    "{{ 'a' is string }} {{ 1 is string }} {{ 1 is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }}",
    "{{ list is iterable }} {{ table is mapping }} {{ list is mapping }} {{ 'a' is iterable }} {{ list is sequence }} {{ 3 is iterable }}", "{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }}",
    "{{ 'a' is in 'abc' }} {{ 2 is in [1, 2] }} {{ 1 is eq 1 }} {{ 'x' is ne('y') }} {{ 'ab' is lower }} {{ 'AB' is upper }}", "{{ yes is defined and not missing is defined }}", "{{ n is number and n > 3 }}",
    # JSON.
    "{{ table | tojson }}", "{{ table | tojson(indent=2) }}", "{{ list | tojson }} {{ 'a\"/<b>\\n' | tojson }} {{ none | tojson }} {{ 1.0 | tojson }} {{ [] | tojson(indent=1) }} {{ {} | tojson }}",
    # Loops.
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ x }} {% endfor %}",
    "{% for x in empty %}x{% else %}none{% endfor %}", "{% for x in missing %}x{% else %}none{% endfor %}", "{% for k, v in table.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in table | items %}{{ k }}{% endfor %}",
    "{% for k in table %}{{ k }}{% endfor %} {% for k in table.keys() %}{{ k }}{% endfor %} {{ table.get('a') }} {{ table.get('z') }} {{ table.get('z', 1) }}", "{% for c in 'abc' %}{{ c }}.{% endfor %}",
    "{% for x in list if x != 'a' %}{{ loop.index }}{{ x }}{{ loop.length }} {% endfor %}", "{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(6, 0, -2) | list }}", "{% for x in list %}{% for y in list %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in list %}[{{ loop.previtem }}{{ x }}{{ loop.nextitem }}]{% endfor %}", "{% set x = 1 %}{% for i in range(3) %}{{ x }}{% set x = x + 1 %}{% endfor %}{{ x }}",
    "{% set ns = namespace(n=0, s='') %}{% for x in list %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ x %}{% endfor %}{{ ns.n }}{{ ns.s }}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for (k, v) in table.items() %}{{ k }}{% endfor %}",
    "{{ messages | map(attribute='role') | join(',') }} {{ list | map('upper') | join }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='content') | first }}",
    "{{ numbers | select('odd') | list }} {{ numbers | reject('odd') | list }} {{ [0, 1, ''] | select | list }} {{ messages | selectattr('role') | list | length }}", "{{ messages | map(attribute='x', default='?') | join }}",
    # Set, macros.
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set x = 'a' %}{% if yes %}{% set x = 'b' %}{% endif %}{{ x }}", "{% set x %}  a {{ n }}\n{% endset %}[{{ x }}]", "{% if yes %}{% set y = 1 %}{% endif %}{{ y }}",
    "{% macro m(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{{ n }}{{ q }}{% endmacro %}{% set q = 'Q' %}{{ m(1) }} {{ m(1, 2) }} {{ m(a=3, c='C') }} {{ m() }}", "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m(x) %}[{{ x | upper }}]{% endmacro %}{% for y in list %}{{ m(y) ~ loop.index }}{% endfor %}", "{{ dict(a=1, b='x') }}", "{% set x = namespace(a=[]) %}{% set x.a = x.a + [1] %}{{ x.a }}", "{% if missing %}a{% elif n > 8 %}b{% elif n == 7 %}c{% else %}d{% endif %}",
    "{% generation %}x{{ n }}{% endgeneration %}", "{{ 'a' if messages | length > 2 else 'b' }}", "{{ (messages | last).role }}", "{{ messages[-1].content | trim ~ '!' }}", "{{ '%s' if yes }}", "{{ ('a' ~ 'b') | upper ~ 'c' | upper }}",
    "{{ - 3 | abs }}", "{{ n is odd and 'x' or 'y' }}", "{% if not messages[0].tool_calls %}t{% endif %}", "{{ [messages[0].role, 'x'] | join(' ') }}", "{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}",
    "{{ list.0 }}{{ table.c.0 }}", "{{ ['a', 'b',] }}", "{{ n == 7 and f < 3 }}", "{{ 'x' * 0 }}|{{ [] or 'none' }}", "{{ word.lower() | length }}",
    "{% set d = {'a': 1} %}{{ d.a }}{{ d['a'] + 1 }}", "{{ [1,2,3][1:] | length }}", "{% for i in range(3) -%}\n  {{ i }}\n{%- endfor %}", "{{ yes and messages[0]['role'] == 'user' }}",
]


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FIXTURES / "tokenizers" / "llama_legacy.json"),
                                        bos_token=BOS, eos_token=EOS)
    templates = {}
    for name, source in TEMPLATES.items():
        tokenizer.chat_template = source
        results = []
        for conversation in CONVERSATIONS:
            for reply in (False, True):
                try:
                    results.append({"text": _compile_jinja_template(source).render(
                        messages=conversation, tools=None, documents=None, add_generation_prompt=reply,
                        bos_token=BOS, eos_token=EOS)})
                    if conversation:  # apply_chat_template itself takes no empty one
                        text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=reply)
                        assert text == results[-1]["text"], (name, conversation, text, results[-1])
                except TemplateError as error:
                    results.append({"error": str(error)})
        templates[name] = {"source": source, "results": results}
    snippets = [{"source": s, "text": _compile_jinja_template(s).render(**VALUES)} for s in SNIPPETS]
    document = {"bos": BOS, "eos": EOS, "conversations": CONVERSATIONS, "templates": templates,
                "values": VALUES, "snippets": snippets}
    path = FIXTURES / "generate" / "chat.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(path, len(templates), "templates,", len(snippets), "snippets")


main()
