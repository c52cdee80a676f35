#!/usr/bin/env python3
"""Writes djinn-template/tests/cases.json: single constructs of Jinja, and what transformers' Jinja renders.

    pip install transformers jinja2
    python scripts/make_template_cases.py

  variables  what the templates see, as JSON text
  cases      [source, output]; null where it raises
"""
import json
import pathlib

import transformers.utils.chat_template_utils as chat

OUT = pathlib.Path(__file__).resolve().parent.parent / "djinn-template/tests/cases.json"
VARIABLES = {
    "text": "  Hello, <World>!\n", "empty": "", "n": 7, "f": 2.5, "big": 2**64 - 1, "none": None, "yes": True,
    "l": [3, 1, 2], "words": ["pear", "Apple", "fig"], "d": {"b": 1, "a": {"x": [1, None]}, "items": 2}, "mixed": [1, "1", 1.0, True, None, [1]],
    "m": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "n": {"k": 2}}, {"role": "user", "content": "c", "n": {"k": 1}}],
    "uni": "Ünï\u2028 \u00ad\u200b😀", "quotes": "it's \"x\" \\ \t", "csv": "a,b,,c", "neg": -7.5, "tiny": 1e-07,
}

# Expressions, each printed; grouped so that a line is one subject.
EXPRESSIONS = """
1 + 2 | -2 ** 2 | 2 ** -1 | 2 ** 3 ** 2 | 7 // 2 | -7 // 2 | 7 // -2 | -7 % 3 | 7 % -3 | 7.5 // 2 | -7.5 % 2 | 7 / 2 | 4 / 2 | 1 / 0 | 1 // 0 | 1 % 0 | 1.0 / 0
2 ** 100 | 2 ** 0.5 | (-8) ** 2 | 10 ** 20 | big + 1 | big == 2 ** 64 - 1 | 1e16 | 1e15 | 123456789.123456789 | 1e-5 | 0.0001 | 1e300 * 1e10 | -0.0 | tiny | neg | 1_000 | 0x1F | 0b101 | 0o17
true + 1 | true == 1 | 1 == 1.0 | 1 < 2 < 3 | 3 > 2 > 2 | 1 < 'a' | 'a' < 'b' | [1, 2] < [1, 3] | (1, 2) < (1,) | none == none | none < 1 | 2 ** 53 == 2.0 ** 53 | 2 ** 53 + 1 > 2.0 ** 53 | 'a' != 1
not true | not not 1 | not 1 == 2 | 1 and 0 or 2 | '' or [] | missing or 'x' | 1 in l | 1 not in l | 'b' in d | 'x' in 'xyz' | 1 in 'a' | none in [none] | missing in [1] | 1 in missing | 1 in none | [1] in mixed | true in [1]
'a' ~ 1 ~ none ~ 1.0 | 'a' + 'b' | 'a' * 3 | 3 * 'a' | 'a' * -1 | [1] * 2 | (1,) + (2,) | [1] + (2,) | 'a' + 1 | 'a' - 'b' | none + 'a' | -'a' | -true | +1.5 | --1 | - -1
[1, 2.0, 'x', none, true, {}, (), (1,), []] | {'a': 1, 1: 'b', none: [1]} | {'a': 1, 'a': 2} | ('a',) | () | [[]] | quotes | [quotes] | [uni] | ["it's"] | ['"'] | ['\\'] | ["\x00\x7f\xa0"]
1 if true else 2 | 1 if false | (1 if false) is undefined | 'a' if 0 else 'b' if 0 else 'c' | (1 if true else 2) + 1
l[0] | l[-1] | l[9] | l[1:] | l[:-1] | l[::-1] | l[::2] | l[5:] | l[-2:] | l[2:0:-1] | l[:] | l[none:2] | text[2:7] | text[::-1] | text[2] | uni[0] | uni[1:3] | uni[::-1] | text['x'] | l['x'] | l[1.0] | l[true] | range(10)[2:5] | range(10)[::-2] | (1, 2, 3)[1:] | l[0:1:0] | [][5::-1]
d.b | d['b'] | d.items | d['items'] | d.a.x[0] | d.zz | d.zz.y | d['zz'] | d.get('zz') | d.get('zz', 1) | d.get('b') | d.keys() | d.values() | d.items() | d.keys() | list | d.items() | list | none.x | none['x'] | n.x | missing.x | missing['x'] | m[0].role | m.0.role | m[5].role | d.__class__ | text.__len__ | d._x
l.append(1) | l.index(1) | l.index(9) | l.count(3) | l.copy() | d.update({}) | d.pop('b') | d.copy() | (1, 2).index(2) | range(3).count(1) | 3 .bit_length | (2.0).is_integer() | l.sort() | d.get | l.append is defined | d.pop is defined | d.get is defined
text.strip() | text.lstrip() | text.rstrip('\n') | 'xxabxx'.strip('x') | 'abc'.strip('ab') | text.upper() | text.lower() | text.title() | text.capitalize() | text.swapcase() | "they're bill's".title() | 'ab'.center(5) + '|' | 'ab'.center(6, '*') | 'abc'.center(6, '*') | 'ab'.ljust(4) + '|' | 'ab'.rjust(4) | '42'.zfill(5) | '-42'.zfill(5) | 'a'.zfill(0)
csv.split(',') | csv.split(',', 1) | csv.rsplit(',', 1) | ' a  b '.split() | ' a  b c '.split(none, 1) | ' a b c '.rsplit(none, 1) | ''.split() | ''.split(',') | 'abc'.split('') | csv.partition(',') | csv.rpartition(',') | csv.partition('x') | csv.rpartition('x') | csv.split(sep=',', maxsplit=2) | 'a\nb\r\nc'.splitlines() | 'a\nb\n'.splitlines(true) | ''.splitlines() | 'aXbXc'.split('X')[1]
'aaa'.replace('a', 'b') | 'aaa'.replace('a', 'b', 2) | 'abc'.replace('', '-') | 'abc'.replace('', '-', 2) | 'aaa'.replace('a', 'b', -1) | 'aaa'.find('a') | 'abc'.find('c') | 'abc'.rfind('z') | 'abcabc'.rfind('b') | 'abc'.index('z') | 'aaaa'.count('aa') | 'abc'.count('') | 'abc'.startswith('ab') | 'abc'.startswith(('x', 'a')) | 'abc'.endswith('bc') | 'abc'.startswith(1) | 'a-b'.removeprefix('a-') | 'a-b'.removesuffix('-b') | ','.join(words) | ','.join(l) | ','.join('abc') | ''.join([]) | 'Ü'.find('x')
'a1'.isalnum() | 'a'.isalpha() | '1'.isdigit() | ''.isdigit() | '1.5'.isdigit() | '1'.isnumeric() | '1'.isdecimal() | ' '.isspace() | ''.isspace() | 'Ab C'.istitle() | 'AB1'.isupper() | 'ab1'.islower() | 'a b'.isidentifier() | 'é'.isascii() | '\n'.isprintable() | 'a'.isprintable()
'{} {}'.format(1, 'a') | '{1} {0}'.format(1, 2) | '{a}'.format(a=1) | '{{}}'.format() | '{:>5}|'.format('a') | '{:<5}|'.format('a') | '{:^5}|'.format('a') | '{:*^7}'.format('ab') | '{:05d}'.format(42) | '{:+d}'.format(1) | '{:x} {:X} {:o} {:b} {:#x}'.format(255, 255, 8, 5, 255) | '{:,}'.format(1234567) | '{:_}'.format(1234567) | '{:.2f}'.format(3.14159) | '{:8.3f}|'.format(3.14159) | '{:e}'.format(12345.678) | '{:.2e}'.format(0.00012) | '{:g}'.format(0.00001) | '{:g}'.format(1234567.0) | '{:.3g}'.format(1234.5) | '{:%}'.format(0.25) | '{:.1%}'.format(0.256) | '{!r}'.format('a') | '{!r:>6}'.format('a') | '{!s}'.format(none) | '{}'.format() | '{:d}'.format('a') | '{:.2}'.format('abc') | '{0}{0}'.format('x') | '{:>{}}'.format(1, 2) | '{' .format(1) | '{:s}'.format('a') | '{:5}|'.format(3) | '{:<5}|'.format(3) | '{:.3}'.format(2.0) | '{}'.format(1.0)
'%s' % 'a' | '%s %s' % (1, none) | '%d' % 3.7 | '%5d|' % 3 | '%-5d|' % 3 | '%05d' % 3 | '%+d' % 3 | '%x' % 255 | '%.2f' % 1.005 | '%5.1f|' % 2.25 | '%e' % 1234.5 | '%g' % 1e-5 | '%g' % 100000.0 | '%g' % 1000000.0 | '%%' % () | '%s' % [1] | '%r' % 'a' | '%(a)s' % {'a': 1} | '%s' % (1, 2) | '%d' % 'x' | 'a' % 1 | 'a' % {} | '%s' % () | '%5s|' % 'a' | '%-5s|' % 'a' | '%.1s' % 'abc' | '%c' % 65 | '%i' % true | '%s %s' | format(1, 2) | '%(x)s' | format(x=5)
l | sort | words | sort | words | sort(case_sensitive=true) | words | sort(reverse=true) | mixed | sort | m | sort(attribute='role') | map(attribute='content') | list | m | map(attribute='n.k', default=0) | list | l | reverse | list | 'abc' | reverse | l | first | [] | first | [] | first is defined | l | last | l | max | l | min | [] | max | words | max | l | sum | [1.5, 2] | sum | l | sum(start=10) | m | sum(attribute='n.k')
words | join | words | join(', ') | l | join('-') | m | join(', ', attribute='role') | [none, missing] | join(',') | words | length | text | length | none | length | 5 | length | missing | length | d | length | d.keys() | length | range(3) | length | uni | length | l | list | 'ab' | list | d | list | none | list | missing | list | l | unique | list | ['a', 'A', 'b'] | unique | list | m | map(attribute='role') | unique | list
m | selectattr('role', 'equalto', 'user') | list | length | m | selectattr('content') | map(attribute='content') | join | m | rejectattr('n', 'defined') | list | length | m | selectattr('n.k', 'gt', 1) | list | length | l | select('odd') | list | l | select | list | [0, 1, '', 'a'] | select | list | [0, 1] | reject | list | l | reject('in', [1]) | list | l | select('nosuch') | list | none | select | list | none | map('upper') | list | l | map('string') | join | words | map('replace', 'p', 'P') | list | words | map('truncate', 3, true, '') | list | l | map('nosuch') | list | m | selectattr | list
d | dictsort | {'b': 1, 'A': 2} | dictsort | {'b': 1, 'A': 2} | dictsort(true) | {'b': 1, 'a': 2} | dictsort(by='value') | {'b': 1, 'a': 2} | dictsort(reverse=true) | d | items | list | missing | items | list | l | items | m | groupby('role') | map(attribute=0) | list | l | batch(2) | list | l | batch(2, 0) | list | l | slice(2) | list | l | slice(2, 'x') | list | range(7) | slice(3) | list
text | trim | 'xax' | trim('x') | 5 | trim | none | trim | text | upper | text | title | 'hello-world (x) [y]' | title | text | capitalize | none | upper | text | replace('l', 'L') | text | replace('l', 'L', 1) | 5 | replace('5', '6') | 'a\nb\n\nc' | indent | 'a\nb' | indent(2, true) | 'a\n\nb' | indent(2, false, true) | 'a\nb\n' | indent(1) + '|' | 'a\nb' | indent('--') | '' | indent(2, true) | 'a' | indent | 'a b c' | wordcount | 'hello world foo' | truncate(10) | 'hello world foo' | truncate(10, true) | 'hello world foo' | truncate(10, false, '…', 0) | 'short' | truncate(10) | 'ab' | center(6) + '|' | text | escape | '<a>' | e | '<a>' | safe + '<b>' | '<b>' + ('<a>' | safe) | ('<a>' | safe) ~ '<b>' | ('<a>' | safe) | e | ('<a>' | safe) | forceescape | '<' | e | length | 'a b&c/d' | urlencode
3.7 | int | '3.7' | int | '42' | int | ' 42 ' | int | 'x' | int | 'x' | int(9) | 'ff' | int(0, 16) | '0xff' | int(0, 16) | none | int | missing | int | true | int | '1_000' | int | '3.5' | float | 'x' | float | 'x' | float(1) | 'inf' | float | 3 | float | 2.5 | round | 3.5 | round | 3 | round | 3.14159 | round(2) | 2.675 | round(2) | 3.14159 | round(1, 'ceil') | 3.14159 | round(1, 'floor') | 1234.5 | round(-2) | -3 | abs | -3.5 | abs | 'a' | abs | 'x' | default('y') | missing | default('y') | missing | default | none | default('y') | none | default('y', true) | '' | d('y', true) | missing.x | default('y') | 5 | string | none | string | 5 | string | length
d | tojson | uni | tojson | uni | tojson(ensure_ascii=true) | quotes | tojson | '</script>' | tojson | [tiny, 1e16, 1.0, -0.0, big] | tojson | {'b': 1, 'a': 2} | tojson(sort_keys=true) | d | tojson(indent=2) | d | tojson(separators=(',', ':')) | d | tojson(true) | missing | tojson | l | map('string') | tojson | (1, 2) | tojson | {1: 2, true: 3, none: 4, 1.5: 5} | tojson | {(1,): 2} | tojson | range(2) | tojson | d.items() | tojson | 'x' | tojson + 'y' | [] | tojson(indent=2) | {} | tojson(indent=2) | d | tojson(indent='\t') | l | tojson(indent=0) | '\x7f\x80\x1f' | tojson | 'inf' | float | tojson | nosuch is defined and nosuch | tojson
n is odd | n is even | n is divisibleby(7) | n is divisibleby 7 | n is number | f is float | n is integer | true is integer | true is boolean | true is number | text is string | l is sequence | d is sequence | text is sequence | d is mapping | l is mapping | l is iterable | text is iterable | none is iterable | n is iterable | none is none | missing is none | missing is defined | missing is undefined | d.zz is defined | m[9] is defined | m[9].x is defined | n is eq 7 | n is ne 7 | n is gt 5 | n is lt 5 | n is ge 7 | n is le 6 | n is equalto 7.0 | n is sameas 7 | n is in [7] | n is not in [7] | 'A' is upper | 'a' is lower | range is callable | n is callable | missing is callable | true is true | 1 is true | false is false | 'upper' is filter | 'odd' is test | 'x' is filter | n is nosuch | l | map('upper') is iterable | 'x' is escaped | not n is odd | n is odd and n is number | n is none or n
(l | map('string')) is sequence | (l | map('string')) is string | (l | select) | length | (l | reverse) | length | (l | reverse)[0] | d.keys()[0] | (l | map('string')) and 1 | ([] | select) and 1 | d.keys() == d.keys() | range(3) == range(3) | range(3) == [0, 1, 2] | range(0) == range(0) | (1, 2) == [1, 2]
range(3) | range(1, 4) | range(0, 10, 3) | list | range(3, 0, -1) | list | range(3) | list | range(-1) | list | range(100001) | range('a') | range() | dict(a=1) | dict({'b': 2}, a=1) | dict([('a', 1)]) | namespace(a=1).a | namespace().x is defined | namespace(a=[1]) | namespace(_a=1) | raise_exception('no') | strftime_now is callable | joiner(', ') is callable | dict | namespace
'a\tb\\n\'\"' | "a'b" | '\x41\u00e9\101' | '\q' | 'a' 'b' | 'é' | '\U0001F600' | '\N{BULLET}' | 'a\
b'
l | nosuch | n() | missing() | text() | l.0 | d.b.c | (1, 2).0 | 1.5.x | text.strip().upper()[0:2] | text.strip | n | attr('x') | d | attr('b') | d | attr('items') is callable | {'a': l}['a'][0] | [l, [d]][1][0].b | {}.x | {[1]: 2} | {l: 1} | d[l] | d[none] | {none: 1}[none] | {1: 'a'}[true] | {1: 'a'}[1.0] | {1.5: 'a'}[1.5]
""".strip("\n")

TEMPLATES = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}{{ x }}{% else %}none{% endfor %}", "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in missing %}{% else %}e{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endfor %}", "{% break %}", "{% for a, b in d.items() %}{{ a }}{{ b }}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, b in [5] %}{% endfor %}",
    "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}", "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{% set outer = loop %}{% for y in l %}{{ outer.index }}{% endfor %}{% endfor %}", "{% for x in l recursive %}{% endfor %}", "{% for x in l | reverse %}{{ loop.last }}{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{{ loop }}", "{% for x in l %}{% endfor %}{{ x }}", "{% for l in l %}{{ l }}{% endfor %}",
    "{% set g = l | map('string') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}", "{% set g = l | map('string') %}{{ g | first }}{{ g | list }}", "{% set g = l | select %}{{ 1 in g }}{{ g | list }}",
    "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = y %}{% endfor %}{{ x }}", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b) = [1, 2] %}{{ a }}{{ b }}", "{% set a, b = 1 %}", "{% set a = 1, 2 %}{{ a }}", "{% set x %}a{{ n }}{% endset %}{{ x }}{{ x | length }}", "{% set x | upper %}ab{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}ab{% endset %}{{ x }}", "{% set true = 1 %}", "{% set n.x = 1 %}", "{% set missing.x = 1 %}", "{% set x %}{% set y = 1 %}{% endset %}[{{ y }}]",
    "{% set ns = namespace(a=1) %}{% for x in l %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}", "{% set ns = namespace() %}{% set ns.l = l + [4] %}{{ ns.l }}{{ ns['l'] }}{{ ns.zz }}{{ ns }}", "{% set ns = namespace(a=1) %}{% set ns.b, ns.a = 1, 2 %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace(d) %}{{ ns.b }}{% set ns._x = 1 %}", "{{ namespace(a=1) == namespace(a=1) }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% set c = 3 %}{% endwith %}{{ a }}{{ c }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(a=1, c=5) }}{{ f() }}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}", "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}", "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(3) }}", "{% macro f() %}a{% endmacro %}{{ f() + 'b' }}{{ f() | upper }}{{ f() is string }}{{ f is callable }}", "{% macro f(x) %}{% if x %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{% macro f() %}{% set z = 1 %}{% endmacro %}{{ f() }}[{{ z }}]", "{% macro f(x) %}{{ n }}{{ x }}{% endmacro %}{% set n = 1 %}{{ f(2) }}", "{% for i in l %}{% macro g() %}{{ i }}{% endmacro %}{{ g() }}{% endfor %}", "{% macro f(*a) %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}", "{{ f() }}{% macro f() %}{% endmacro %}", "{% if n %}{% macro f() %}in{% endmacro %}{% endif %}{{ f() }}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{{ n }}{% endcall %}", "{% macro f() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) f() %}{{ a }}-{{ b }}{% endcall %}", "{% macro f() %}a{% endmacro %}{% call f() %}b{% endcall %}", "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call f(1) %}{% set q = 5 %}{{ q }}{% endcall %}{{ q }}", "{% macro f() %}{% call g() %}[{{ caller() }}]{% endcall %}{% endmacro %}{% macro g() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{% endcall %}", "{% call n %}{% endcall %}", "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(*[1]) }}{{ f(**{'x': 2}) }}",
    "{% filter upper %}a{{ text }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}a{% endfilter %}", "{% filter nosuch %}{% endfilter %}", "{% generation %}a{% set w = 1 %}{% endgeneration %}{{ w }}",
    "{% if n > 5 %}a{% elif n > 1 %}b{% else %}c{% endif %}", "{% if missing %}a{% else %}b{% endif %}", "{% if missing.x %}{% endif %}", "{% if false %}{{ 1 | nosuch }}{% endif %}x", "{% if true %}{{ 1 | nosuch }}{% endif %}x", "{{ 1 | nosuch if false else 2 }}", "{% if false %}{% for x in l %}{{ x | nosuch }}{% endfor %}{% endif %}", "{% if n is nosuch %}{% endif %}", "{{ 'a' is defined not 1 }}", "{% if 1 %}",
    "{% endif %}", "{% for %}", "{{ }}", "{{ 1 2 }}", "{{ 1 }", "{% if 1 }}{% endif %}", "{{ (1 }}", "{{ [1, }}", "{{ {'a' 1} }}", "{{ 'a }}", "{% unknown %}", "{{ a.}}", "{{ 1 + }}", "{{ a[1:2:3:4] }}", "{{ f(a=1, 2) }}", "{{ a is b is c }}", "{{ 1 if }}", "{# open", "{% raw %}x", "{{ a | }}", "{{ @ }}", "{{ a! }}", "{{ 1 ; 2 }}", "{{ ! }}", "{% set x %}", "{{ not }}", "{{ a[] }}", "{{ l[1,2] }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "a\n{% raw %}\n  {{ x }}\n  {% endraw %}\nb", "a {%- raw -%} \n x \n {%- endraw -%} b", "{# c #}a{#- c -#} b", "a\n  {# c #}\nb", "a {# c\n d #} b", "  {#- x #}  y",
    "  {% if true %}\n    a\n  {% endif %}\nb\n", "a  {%- if true %}  b  {%- endif %}  c", "a\n  {%+ if true %}\n b\n{% endif +%}\nc", "{{ 1 }}\n{{ 2 }}\n", "{{- 1 -}}  \n {{ 2 }}", "x\n\n\n", "\r\nx\r\n{% if 1 %}\r\ny{% endif %}\r\n", "\n  \t{% set a = 1 %}  \n b", "{% set a = 1 -%}\n\n  b", "a {{ 1 -}} \n b", "{{+ 1 }}", "{%-if 1-%}a{%-endif-%}", "{{ {'a': {'b': 1}} }}", "{{ {'a': '}}'}['a'] }}", "{{ '%}' }}{{ '{{' }}", "{ { a } }", "a{ {{ n }}} b", "{{n}}{%if n%}x{%endif%}", "\u00a0{% if 1 %}\u00a0a{% endif %}", "{% if 1 %}\n\n a{% endif %}", "a\n{{ n }}\n  {%- set q = 1 %}\nb", "{{ 'a\nb' }}", "{{ 'a\r\nb' }}", "line\n{% for x in l %}\n  - {{ x }}\n{% endfor %}\nend",
    "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{{ [1, 2, ] }}{{ (1, ) }}{{ {'a': 1, } }}", "{{ 1, 2 }}", "{{ dict(a=1).items() | list }}", "{{ 'a' 'b' ~ 'c' }}", "{% set x = [] %}{% set _ = x.append(1) %}{{ x }}", "{% do l.append(1) %}", "{% include 'x' %}", "{% set x = m[0] %}{{ x.role }}{{ x['content'] }}", "{{ m | map(attribute='role') | join(',') | upper }}", "{% for x in m if x.role == 'user' and x.n is defined %}{{ x.n.k }}{% endfor %}", "{% set items = d.items() | list %}{{ items[0][0] }}", "{% for k, v in d | items if v is number %}{{ k }}{% endfor %}", "{% for i in range(l | length - 1, -1, -1) %}{{ l[i] }}{% endfor %}", "{{ (m | selectattr('role', 'eq', 'user') | list)[-1].content }}", "{%- set found = namespace(v=false) -%}{%- for x in m -%}{%- if x.content is none -%}{%- set found.v = true -%}{%- endif -%}{%- endfor -%}{{ found.v }}",
]


def split(line):
    """Expressions between ` | `; one that begins with a filter's name belongs to the one before."""
    filters = set(chat._compile_jinja_template("").environment.filters) | {"nosuch"}
    found = []
    for part in line.split(" | "):
        word = part.split("(")[0].split(" ")[0].split("[")[0].split(")")[0]
        if found and word in filters and word not in ("d",) and not part.startswith(("'", '"')) and word == word.strip():
            found[-1] += " | " + part
        elif found and part.startswith("d('y'"):
            found[-1] += " | " + part
        else:
            found.append(part)
    return found


def render(source):
    try:
        return chat._compile_jinja_template(source).render(**json.loads(json.dumps(VARIABLES)))
    except Exception:  # whatever it raises: the case is refused
        return None


def main():
    sources = [f"{{{{ {expression} }}}}" for line in EXPRESSIONS.replace("'a\\\nb'", "'x'").split("\n") for expression in split(line)]
    sources = list(dict.fromkeys(sources + TEMPLATES))
    cases = [[source, render(source)] for source in sources]
    # Addresses of objects cannot match.
    cases = [case for case in cases if " at 0x" not in (case[1] or "") and "<class" not in (case[1] or "")]
    lines = ",\n".join(json.dumps(case) for case in cases)
    OUT.write_text(f'{{"variables": {json.dumps(json.dumps(VARIABLES))}, "cases": [\n{lines}\n]}}\n')
    print(len(cases), "cases,", sum(output is None for _, output in cases), "raise")


main()
