#!/usr/bin/env python3
"""Writes djinn-models/tests/chats/expected.json: chat templates, and what transformers makes of them.

    pip install transformers jinja2
    python scripts/make_chats.py

The templates in djinn-models/tests/chats/*.jinja were written for these tests: they put conversations into the
published formats of their families, with the constructs that the families' own templates use.

  conversations  name -> what apply_chat_template gets, as JSON text
  templates      name -> conversation -> [output, output with the generation prompt]; null where it raises
  snippets       [source, output or null] of single constructs, over the conversation `snippet_input`
"""
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as chat

OUT = pathlib.Path(__file__).resolve().parent.parent / "djinn-models/tests/chats"
NOW = datetime.datetime(2024, 7, 5, 16, 3, 9)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def msg(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = msg("system", "Be brief.\nAnswer in the user's language.")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather of a place: \"today\" & <tomorrow>, in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City, e.g. Zürich"},
                "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
                "parts": {"type": "array", "items": {"type": "string", "enum": ["wind", "rain"]}},
                "limit": {"type": "number", "default": 1e-07, "maximum": 1e16},
            },
            "required": ["place"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {
    "place": "Zürich", "days": 2, "parts": ["wind"], "limit": 0.5, "deep": {"b": [None, True, {"z": "\u2028\x1b\"\\/"}], "a": -1.0}}}}
CALL_TEXT = {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": "{\"zone\": \"UTC\"}"}}
PARTS = [{"type": "text", "text": "What is this?"}, {"type": "image"}, {"type": "text", "text": " Say it."}]

CONVERSATIONS = {
    "one": {"messages": [msg("user", "The capital of France is")]},
    "system": {"messages": [SYSTEM, msg("user", "  Hi there \n")]},
    "turns": {"messages": [SYSTEM, msg("user", "Hi"), msg("assistant", "Hello! "), msg("user", "Why?"), msg("assistant", "So.\n\nBecause."), msg("user", "")]},
    "no system": {"messages": [msg("user", "a"), msg("assistant", "b"), msg("user", "c"), msg("assistant", "d")]},
    "unicode": {"messages": [msg("system", "日本語 \u200b"), msg("user", "👩‍👩‍👧‍👦 café cafe\u0301 \x00\x1b \r\n\t\u2028 <s></s>"), msg("assistant", "‏مرحبا‎")]},
    "empty": {"messages": []},
    "empty contents": {"messages": [msg("system", ""), msg("user", ""), msg("assistant", "")]},
    "none": {"messages": [msg("user", "x"), msg("assistant", None)]},
    "parts": {"messages": [msg("user", PARTS), msg("assistant", [{"type": "text", "text": "A cat."}]), msg("user", [])]},
    "tools": {"messages": [SYSTEM, msg("user", "Weather?")], "tools": [WEATHER, TIME]},
    "tools without system": {"messages": [msg("user", "Weather?")], "tools": [WEATHER]},
    "no tools": {"messages": [msg("user", "Weather?")], "tools": []},
    "calls": {"messages": [
        msg("user", "Weather in Zürich?"), msg("assistant", "", tool_calls=[CALL]),
        msg("tool", "{\"rain\": 3}", name="get_weather", tool_call_id="call00001"), msg("assistant", "It rains."), msg("user", "Thanks")],
        "tools": [WEATHER, TIME]},
    "two calls": {"messages": [
        SYSTEM, msg("user", "Both?"), msg("assistant", "Let me see.", tool_calls=[CALL, CALL_TEXT]),
        msg("tool", "3 °C", name="get_weather", tool_call_id="call00001"), msg("tool", "12:00", name="now", tool_call_id="call00002")],
        "tools": [WEATHER, TIME]},
    "call without content": {"messages": [msg("user", "x"), {"role": "assistant", "tool_calls": [CALL_TEXT]}, msg("tool", {"value": 1.0}, tool_call_id="call00002")]},
    "documents": {"messages": [msg("user", "Sum up")], "documents": [{"title": "Ä", "text": "one\ntwo"}, {"title": "B", "text": ""}]},
    "thinking": {"messages": [msg("user", "2+2"), msg("assistant", "<think>\nhm\n</think>\n\n4"), msg("user", "3+3"), msg("assistant", "6", reasoning="three and three")], "enable_thinking": False},
    "two users": {"messages": [msg("user", "a"), msg("user", "b")]},
    "assistant first": {"messages": [msg("assistant", "a"), msg("user", "b")]},
    "system later": {"messages": [msg("user", "a"), SYSTEM, msg("user", "b")]},
    "odd role": {"messages": [msg("user", "a"), msg("narrator", "b")]},
    "date": {"messages": [msg("user", "a")], "date_string": "01 Jan 2030"},
    "long": {"messages": [msg(("user", "assistant")[i % 2], f"turn {i} " * (i % 5)) for i in range(41)]},
}

# Single constructs; their variables are those of SNIPPET_INPUT. djinn-template's own tests have many more.
SNIPPET_INPUT = {
    "messages": [msg("system", "Be brief"), msg("user", " Hi, it's \"me\" "), msg("assistant", None, tool_calls=[CALL])],
    "tools": [WEATHER], "documents": None, "number": 3, "fraction": 2.5, "big": 1e16, "small": 1e-05, "whole": 3.0, "huge": 123456789012345680000.0,
    "flag": True, "nothing": None, "text": "a b  c\nd\r\ne", "blank": " \u00a0\u001c x \u2003\n", "list": [3, 1, 2], "words": ["b", "a", "C"],
    "mapping": {"items": 1, "keys": "k", "b": [1, 2.0, None, True, "it's", "\"", "é\n"], "a": {}}, "pairs": {"x": 1, "y": 2}, "greek": "Straße ΑΣ ǆ",
}
SNIPPETS = [
    # Printing values.
    "{{ number }} {{ fraction }} {{ whole }} {{ big }} {{ small }} {{ huge }} {{ flag }} {{ nothing }} {{ missing }}", "{{ list }} {{ words }} {{ mapping }}",
    "{{ messages[0] }}", "{{ [1, 'a', none, true, 1.5, [], {}] }}", "{{ {'a': 1, 2: 'b'} }}", "{{ (1, 'a') }} {{ (1,) }}", "{{ 'a' ~ 1 ~ none ~ true ~ 2.0 ~ [1] }}",
    "{{ '%s and %s' | format('a', 1) }}", "{{ '{} {}'.format(1, 'b') }}", "{{ 1 + 2 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }}",
    "{{ 'ab' * 3 }} {{ [1] + [2] }}", "{{ 'a' + 'b' }}", "{{ 'a' 'b' }}", "{{ 'a' + 1 }}", "{{ 'a' + none }}", "{{ 1e3 }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1_000 }}",
    # Literals.
    r"{{ 'a\nb\t\'\"\\' }}", r"{{ '\u00e9\x41' }}", r"{{ '\d+' }}", r'{{ "it\'s" }}', "{{ True }} {{ False }} {{ None }} {{ true }} {{ none }}", "{{ 'line\r\nend' }}", "a\r\nb\rc\n",
    # JSON.
    "{{ mapping | tojson }}", "{{ mapping | tojson(indent=2) }}", "{{ mapping | tojson(indent=4) }}", "{{ mapping | tojson(2) }}", "{{ list | tojson(indent=0) }}", "{{ tools[0] | tojson }}", "{{ tools | tojson(indent=4) }}", "{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}",
    "{{ [big, small, huge, whole, fraction, number, 1e300, 1e22, 123456.789, 0.0001, -0.0] | tojson }}", "{{ 'é\u2028\u007f</script>&\\'' | tojson }}", "{{ blank | tojson }}",
    "{{ greek | tojson(ensure_ascii=true) }}", "{{ '😀' | tojson(ensure_ascii=True) }}", "{{ mapping | tojson(sort_keys=true) }}", "{{ mapping | tojson(separators=(',', ':')) }}", "{{ mapping | tojson(indent=2, separators=(',', ': ')) }}",
    "{{ {1: 2, none: 1, 1.5: 2, false: none} | tojson }}", "{{ missing | tojson }}", "{{ (1, 2) | tojson }}", "{{ pairs.items() | list | tojson }}", "{{ tools | map('tojson') | join('\n') }}", "{{ mapping | tojson(indent='\t') }}", "{{ nothing | tojson }}", "{{ 'x' | tojson | length }}",
    # Tests.
    "{{ 'a' is string }} {{ 1 is string }} {{ list is string }}", "{{ list is sequence }} {{ 'a' is sequence }} {{ pairs is sequence }} {{ 1 is sequence }} {{ none is sequence }}", "{{ list is iterable }} {{ 'a' is iterable }} {{ pairs is iterable }} {{ 1 is iterable }} {{ none is iterable }} {{ missing is iterable }}",
    "{{ pairs is mapping }} {{ list is mapping }}", "{{ 1 is number }} {{ 1.5 is number }} {{ true is number }} {{ '1' is number }}", "{{ 1 is integer }} {{ 1.0 is integer }} {{ true is integer }} {{ 1.0 is float }}", "{{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }}",
    "{{ missing is defined }} {{ missing is undefined }} {{ nothing is defined }} {{ nothing is none }} {{ missing is none }}", "{{ missing == none }} {{ missing is not none }} {{ none == missing }}", "{{ messages[0].missing is defined }} {{ messages[9] is defined }}", "{{ number is odd }} {{ number is divisibleby 3 }}", "{{ 'x' is in 'xyz' }} {{ 1 is in list }}",
    "{{ 'a' is eq 'a' }} {{ 1 is equalto 1.0 }} {{ true == 1 }} {{ 1 == 1.0 }} {{ '1' == 1 }}", "{{ raise_exception is defined }} {{ strftime_now is defined }} {{ strftime_now is callable }} {{ number is callable }}", "{{ 'abc' is lower }} {{ 'ABC' is upper }}",
    # Truth, membership, comparison.
    "{{ 'a' if [] else 'b' }} {{ 'a' if '' else 'b' }} {{ 'a' if {} else 'b' }} {{ 'a' if 0.0 else 'b' }} {{ 'a' if none else 'b' }} {{ 'a' if missing else 'b' }}", "[{{ 'a' if false }}]", "{{ 'role' in messages[0] }} {{ 'x' in messages[0] }} {{ 'brief' in messages[0].content }} {{ 'x' in list }} {{ 'x' in missing }}",
    "{{ 'a' in nothing }}", "{{ 'a' not in 'b' }} {{ not 'a' in 'b' }}", "{{ 1 < 2 <= 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}", "{{ none or 'x' }} {{ 'y' and 'x' }} {{ 0 or [] }} {{ missing or 'd' }}", "{{ [1, 2] == (1, 2) }}", "{{ {'a': 1} == {'a': 1} }}",
    # Access.
    "{{ messages[0]['role'] }} {{ messages[0].role }} {{ messages[-1].role }} {{ messages[0]['missing'] }}", "{{ messages[0].missing.deeper }}", "{{ messages[9].role }}", "{{ nothing.x }}", "{{ nothing['x'] }}", "{{ number.x }}", "{{ 'abc'[0] }} {{ 'abc'[-1] }} {{ 'abc'[1:] }} {{ 'abc'[::-1] }} {{ list[1:][0] }} {{ list[:-1] }} {{ list[::2] }} {{ list[5:] }}",
    "{{ [][::-1] }}{{ ''[::-1] }}{% for x in list[::-1] %}{{ x }}{{ loop.last }}{% endfor %}{{ list[::-1][0] }}{{ list[::-1] | length }}", "{{ mapping['items'] }} {{ mapping['keys'] }}", "{% for k, v in mapping.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in mapping.keys() %}{{ k }};{% endfor %}", "{% for k, v in mapping | items %}{{ k }};{% endfor %}", "{% for k in pairs %}{{ k }}{% endfor %}", "{{ mapping.get('items') }} {{ mapping.get('zz') }} {{ mapping.get('zz', 5) }}",
    "{{ pairs.values() | list }} {{ pairs.keys() | list }} {{ pairs.items() | list }}", "{% for k, v in pairs | dictsort %}{{ k }}{{ v }}{% endfor %}", "{{ mapping.b[4] }} {{ mapping['a'] }}", "{{ tools[0].function.parameters.properties.parts['items'].enum[0] }}",
    # Methods.
    "[{{ ' a '.strip() }}] [{{ ' a '.lstrip() }}] [{{ ' a '.rstrip() }}] [{{ blank.strip() }}] [{{ blank | trim }}] [{{ 'xxaxx'.strip('x') }}] [{{ 'abc'.rstrip('cb') }}]", "{{ text.split() }} {{ text.split(' ') }} {{ text.split('\\n') }} {{ 'a,b,c'.split(',', 1) }} {{ ''.split() }} {{ ''.split(',') }}", "{{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b '.rsplit() }}", "{{ 'a</think>b</think>c'.split('</think>')[-1] }} {{ 'a</think>b'.split('</think>')[0].rstrip('\\n') }}",
    "{{ text.splitlines() }} {{ text.splitlines(true) }} {{ 'a\\x0bb\\x85c\\u2028d\\re'.splitlines() }}", "{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('c') }} {{ 'abc'.startswith('') }}", "{{ 'a-b-a'.replace('a', 'x') }} {{ 'aaa'.replace('a', 'b', 2) }}", "{{ greek.upper() }} {{ greek.lower() }} {{ greek.capitalize() }} {{ greek | upper }} {{ greek | lower }} {{ 'it is' | title }} {{ 'hELLO wORLD' | capitalize }}",
    "{{ 'abcabc'.find('c') }} {{ 'abc'.find('z') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.count('b') }} {{ 'abc'.index('c') }}", "{{ ','.join(words) }} {{ ', '.join(['a']) }} {{ words | join('-') }} {{ words | join }}", "{{ ','.join(list) }}", "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x-suffix'.removesuffix('-suffix') }} {{ 'x'.removeprefix('y') }}", "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }}",
    "{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }}", "{{ 'x'.frobnicate() }}", "{{ list.append(4) }}", "{{ list.index(1) }} {{ list.count(1) }}", "{{ 'abc'.split('') }}",
    # Filters.
    "{{ list | length }} {{ 'é👍' | length }} {{ pairs | count }} {{ list | first }} {{ list | last }} {{ list | sort }} {{ words | sort }} {{ list | reverse | list }} {{ 'abc' | reverse }} {{ list | sum }} {{ list | min }} {{ list | max }} {{ words | unique | list }}", "{{ missing | default('x') }} {{ none | default('x') }} {{ none | default('x', true) }} {{ '' | d('x', boolean=true) }} {{ missing | length }}",
    "{{ messages | map(attribute='role') | list }} {{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='role') | first }} {{ list | select('gt', 1) | list }} {{ list | reject('odd') | list }} {{ messages | selectattr('tool_calls', 'defined') | list | length }}",
    "{{ 'a b' | replace(' ', '_') }} {{ ' a ' | trim }} {{ 'xax' | trim('x') }} {{ 3.7 | int }} {{ '12' | int }} {{ 'z' | int(5) }} {{ 3 | float }} {{ 3.14159 | round(2) }} {{ 3.0 | string }} {{ 1e16 | string }} {{ -3 | abs }} {{ 5 | string + 'a' }} {{ 'abc' | list }}", "{{ '' | indent(2, true) }}|{{ 'a\n\nb' | indent('> ', true, true) }}|{{ 'a\nb' | indent(2) }}|{{ 'a\n\nb' | indent(4, true) }}|{{ 'a\nb' | indent(width=1, first=true) }}", "{{ '<a>' | e }} {{ '<a>' | safe }} {{ '<a>' | escape }} {{ '<&>' }}",
    "{{ list | batch(2) | list }} {{ [1, 2, 3, 4] | slice(2) | list }}", "{% for role, group in messages | groupby('role') %}{{ role }}{{ group | length }}{% endfor %}", "{{ words | map('upper') | list }} {{ pairs | items | list }}", "{{ list | tojson | replace(' ', '') }}", "{{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }}", "{{ 'x' | nosuchfilter }}",
    # Statements.
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.cycle('a', 'b') }};{% endfor %}", "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}>{{ loop.nextitem.role if loop.nextitem is defined else '-' }};{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}", "{% for x in list if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in range(3) %}{{ x }}{% endfor %}{{ range(1, 10, 3) | list }}", "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}", "{% for x in missing %}a{% endfor %}b", "{% for x in 'ab' %}{{ x }},{% endfor %}", "{% for x in number %}a{% endfor %}",
    "{% set ns = namespace(a=1, b=[]) %}{% for x in list %}{% set ns.a = ns.a + x %}{% set ns.b = ns.b + [x] %}{% endfor %}{{ ns.a }}{{ ns.b }}", "{% set x = 1 %}{% for y in list %}{% set x = y %}{% endfor %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a %}x{{ number }}y{% endset %}[{{ a }}]{{ a | length }}", "{% set a | upper %}x{% endset %}{{ a }}", "{% if flag %}{% set z = 1 %}{% endif %}{{ z }}", "{% set ns = namespace() %}{{ ns.x is defined }}{% set ns.x = none %}{{ ns.x is none }}", "{% with a = 1 %}{{ a }}{% endwith %}{{ a }}",
    "{% macro f(a, b='d', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=2) }}{{ f(b=1, a=2) }}", "{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{% endcall %}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f() }}|{{ f(1) | trim | length }}", "{% macro f(a) %}{{ number }}{{ a }}{% endmacro %}{% set number = 9 %}{{ f(1) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "{% raw %}{{ x }}{% endraw %}", "a{# comment #}b {#- c -#} d", "{% if number == 1 %}a{% elif number == 3 %}b{% else %}c{% endif %}", "{{ raise_exception('Stop: ' ~ number) }}", "{% if false %}{{ raise_exception('x') }}{% endif %}ok", "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %p %I %y %a %%') }}", "{{ strftime_now('%-d %B') }}", "{{ dict(a=1, b=2) }} {{ dict(a=1).a }}", "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token }}{{ sep_token }}", "{{ add_generation_prompt }} {{ documents is none }} {{ tools is not none }}", "{% do list.append(1) %}", "{% generation %}a{% endgeneration %}b", "{%- for m in messages %}\n  {%- generation %}\n    {{ m.role }}\n  {%- endgeneration %}\n{%- endfor %}",
    # White space.
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc", "a\n  {%+ if true +%}\n  b\n  {% endif %}\nc", "  {{ number }}\n\n", "a {{- number -}} b", "  {# c #}\n  x\n", "a\n\n{% set x = 1 %}\n\nb\n\n", "{% for x in list %}\n{{ x }}\n{% endfor %}", "\n{{ 1 }}\n", "\t{% if true %}\t{% endif %}\n\tx", "x {% if true %}\n y{% endif %}\n", "{{ 'a' }}\n{%- if true %}\n\n  b{% endif -%}  \n c\n\n", "{{ '{{' }}{{ '%}' }}",
]


def render(source, given, prompt):
    given = json.loads(json.dumps(given))
    variables = {key: value for key, value in given.items() if key not in ("messages", "tools", "documents")}
    try:
        rendered, _ = chat.render_jinja_template(
            [given["messages"]], tools=given.get("tools"), documents=given.get("documents"), chat_template=source,
            add_generation_prompt=prompt, **SPECIAL, **variables)
        return rendered[0]
    except Exception as error:  # whatever it raises: the case is refused
        print(f"  raises {type(error).__name__}: {str(error)[:90]}   <- {source[:60]!r}")
        return None


def main():
    chat.datetime = FixedTime
    found = {"special": SPECIAL, "now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "conversations": {}, "templates": {}}
    # As text, so that readers see the order of the keys.
    found["conversations"] = {name: json.dumps(given) for name, given in CONVERSATIONS.items()}
    for path in sorted(OUT.glob("*.jinja")):
        source = path.read_text()
        cases = {name: [render(source, given, prompt) for prompt in (False, True)] for name, given in CONVERSATIONS.items()}
        found["templates"][path.stem] = cases
    found["snippet_input"] = json.dumps(SNIPPET_INPUT)
    found["snippets"] = [[source, render(source, SNIPPET_INPUT, True)] for source in SNIPPETS]
    text = json.dumps(found, ensure_ascii=True, separators=(",", ":")).replace('],["', '],\n["')
    (OUT / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
