#!/usr/bin/env python3
"""Writes tests/text/data/jinja_goldens.json: small templates with what jinja2 makes of them.

The environment is transformers' own (5.23 with jinja2 3.1.6, MarkupSafe 3.0.3, Python 3.11) and the filter from_json,
which templates use although transformers has none.
    python3 tools/make_template_goldens.py > tests/text/data/jinja_goldens.json
"""

import json
import os
import re
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import jinja2.defaults  # noqa: E402
from transformers.utils import chat_template_utils as utils  # noqa: E402

assert jinja2.__version__ == "3.1.6" and sys.version_info[:2] == (3, 11), "the goldens are those of these versions"

NOW = "2025-06-09T14:05:06"
VARIABLES = {
    "s": "Hello, World",
    "u": "Größe ǅ ß ﬁ İ ΑΣ Σ",
    "n": 42,
    "f": 2.5,
    "neg": -7,
    "t": True,
    "no": None,
    "empty": "",
    "list": [3, 1, 2],
    "words": ["banana", "Apple", "cherry", "apple"],
    "nested": [[1, 2], [3, 4]],
    "d": {"b": 1, "a": 2, "C": 3},
    "html": "<a href=\"x\">T & 'q'</a>",
    "multi": "one\ntwo\n\n  three\n",
    "users": [
        {"name": "Zoe", "age": 31, "city": "NY"},
        {"name": "adam", "age": 25, "city": "CA"},
        {"name": "Bob", "age": 31, "city": "ny"},
        {"name": "Eve", "age": None, "addr": {"zip": [9, 8]}},
    ],
    "messages": [{"role": "user", "content": "Hi"}],
    "big": 9007199254740993,
    "items": {"items": 1, "get": 2, "x": {"y": "z"}},
    "long": "The quick brown fox jumps over the lazy dog, well-known for its half-hearted state-of-the-art agility--and more.",
    "deep": {"list": [{"k": "v" * 30, "n": [1, 2, 3]}, {"k": "w" * 40}], "text": "word " * 30, "tuple": [1]},
    "spaces": "\u00a0\u3000 x \u2003y\u001c\u0085",
    "emoji": "a😀b\u0301c",
    "nul": "a\u0000b\u007f\u200b",
    "quote": 'it\'s "x"\\',
    "huge": 123456789012345678901234567890,
}

# Each line is a template; blocks of lines where newlines matter are in MULTILINE.
LINES = r"""
{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 8 / 2 }}
{{ 2 ** 3 ** 2 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ (-3) ** 3 }} {{ 0 ** 0 }} {{ 4 ** 0.5 }}
{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ 1e308 * 10 }} {{ -1e308 * 10 }} {{ 0.1 + 0.2 }} {{ 1 / 3 }}
{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1.5e300 }} {{ 5e-324 }} {{ 100.0 }} {{ 3.14e2 }} {{ 1E5 }}
{{ 00 }}
{{ big / 3 }} {{ 2 ** 53 + 1 == 2.0 ** 53 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 != 1 }} {{ 1 == true }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ [1, 2] < [1, 3] }} {{ (1, 2) == (1, 2) }} {{ [1] == (1,) }}
{{ true }} {{ false }} {{ none }} {{ True }} {{ False }} {{ None }} {{ true + true }} {{ -true }} {{ true * 3 }} {{ not 0 }} {{ not 'a' }}
{{ 1 and 2 }} {{ 0 and 2 }} {{ 1 or 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ not (1 and 0) or 3 }} {{ none and x.y }} {{ 1 or x.y }}
{{ 'a' ~ 1 ~ none ~ 2.0 ~ [1] }} {{ 'a' 'b' "c" }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'ab' * -1 }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }} {{ 'x' + 'y' }}
{{ 'a\tb\n\x41\u00e9\U0001F600\101\\\'\"\q' }}|{{ "it's" }}|{{ 'tab\	x' }}
{{ 1 in [1, 2] }} {{ 'ell' in s }} {{ 'a' in d }} {{ 1 in d }} {{ 4 not in list }} {{ '' in '' }} {{ 2 in range(5) }} {{ (1, 2) in [(1, 2)] }} {{ 'x' in undefined_thing }}
{{ 'yes' if t else 'no' }} {{ 'yes' if no }}| {{ 'a' if 0 else 'b' if 0 else 'c' }} {{ (1 if 0) is defined }} {{ ('x' if no) is undefined }}
{{ list[0] }} {{ list[-1] }} {{ list[5] }}| {{ s[0] }} {{ s[-1] }} {{ d['a'] }} {{ d.a }} {{ d.zzz }}| {{ d['zzz'] is defined }} {{ nested[1][0] }} {{ nested.1.0 }} {{ users[0].name }} {{ list['0'] }}|{{ list.first }}|
{{ s[1:4] }} {{ s[:-1] }} {{ s[::-1] }} {{ s[::2] }} {{ s[10:2:-3] }} {{ list[1:] }} {{ list[:2] }} {{ list[::-1] }} {{ (1,2,3)[1:] }} {{ range(10)[2:8:2] }} {{ range(10)[::-1]|list }} {{ s[100:] }}| {{ emoji[1:3] }} {{ emoji[::-1] }} {{ list[-2:99] }} {{ list[none:none:none] }}
{{ range(5)|list }} {{ range(2, 8, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(3) }} {{ range(0, 10, 2) }} {{ range(3, -3, -3) }} {{ range(0) }} {{ range(3)|length }}
{{ [] }} {{ [1, 'a', none, true, 1.5] }} {{ (1,) }} {{ () }} {{ (1, 2) }} {{ {} }} {{ {'a': 1, 2: [3]} }} {{ {'a': {'b': ()}} }} {{ [[], {}] }} {{ 1, 2 }} {{ ['it\'s', "q\"", 'both\'"'] }}
{{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ {'a': 1, 'a': 2} }} {{ {none: 1, (1, 2): 2}[(1, 2)] }} {{ {2.0: 'x'}[2] }}
{{ [u, spaces, emoji, nul, quote, multi] }}
{{ undefined_thing }}|{{ undefined_thing is defined }} {{ undefined_thing is undefined }} {{ undefined_thing|default('d') }} {{ undefined_thing|length }} {{ undefined_thing|list }} {{ not undefined_thing }} {{ undefined_thing == undefined_other }} {{ undefined_thing == none }} {{ undefined_thing ~ 'x' }} {{ [undefined_thing] }}
{{ undefined_thing.x }}
{{ undefined_thing + 1 }}
{{ undefined_thing() }}
{{ undefined_thing['x'] }}
{{ undefined_thing < 1 }}
{{ -undefined_thing }}
{{ undefined_thing|tojson }}
{{ d.zzz.y }}
{{ d['zzz']['y'] }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ 1 + 'a' }}
{{ [] + () }}
{{ none + 1 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1.0 / 0 }}
{{ 0 ** -1 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 'a' in 5 }}
{{ 5 in 'a' }}
{{ none[0] }}|{{ none.x }}|{{ (5).x }}|{{ 5['x'] }}|
{{ none() }}
{{ 5() }}
{{ 'a'() }}
{{ none|length }}
{{ 5|length }}
{{ [1, 2, 3](0) }}
{{ {[1]: 2} }}
{{ {'a': 1}[[1]] }}|
{{ [1, 2][1, 2] }}|
{{ d[1:2] }}
{{ s['a':] }}
{{ list[::0] }}
{{ range(0, 10, 0) }}
{{ range(100001) }}
{{ range() }}
{{ range('a') }}
{{ range(100000)|length }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ u.upper() }} {{ u.lower() }} {{ u.title() }} {{ u.capitalize() }}
{{ 'ΑΣ ΑΣΑ Σ ΑΣ. ΑΣ̈'.lower() }} {{ 'ǆ ŉ ﬃ ΐ'.upper() }} {{ 'ǆ ŉ ﬃ'.title() }} {{ 'they\'re bill\'s'.title() }} {{ 'ᏸ'.upper() }} {{ 'İI'.lower()|length }}
[{{ '  x '.strip() }}] [{{ '  x '.lstrip() }}] [{{ '  x '.rstrip() }}] [{{ 'xxaxx'.strip('x') }}] [{{ 'abcba'.strip('ab') }}] [{{ 'abc'.lstrip('a') }}] [{{ 'abc'.rstrip('bc') }}] [{{ spaces.strip() }}] [{{ 'x'.strip(none) }}] [{{ 'éxé'.strip('é') }}]
{{ 'a b  c'.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b '.split(' ') }} {{ 'a b c'.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'abc'.split('bc') }} {{ 'a b c'.split(maxsplit=1) }} {{ 'x1x2x'.split('x') }} {{ 'a  b'.rsplit() }}
{{ 'a\nb\r\nc\x0bd\u2028e\n'.splitlines() }} {{ 'a\nb\n'.splitlines(true) }} {{ ''.splitlines() }} {{ '\n\n'.splitlines() }}
{{ 'hello'.replace('l', 'L') }} {{ 'hello'.replace('l', 'L', 1) }} {{ 'aaa'.replace('aa', 'b') }} {{ 'abc'.replace('', '-') }} {{ 'abc'.replace('', '-', 2) }} {{ ''.replace('', 'x') }} {{ 'abc'.replace('b', '') }} {{ 'é'.replace('', '|') }}
{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'ab')) }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.startswith('', 5) }} {{ 'abc'.startswith('') }} {{ 'abc'.endswith(()) }}
{{ 'hello'.find('l') }} {{ 'hello'.find('z') }} {{ 'hello'.count('l') }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ 'éaé'.find('a') }} {{ 'hello'.find('l', 3) }} {{ 'hello'.find('l', -2, -1) }} {{ ''.find('') }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'hello'.count('l', 3, 5) }}
{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'abc'.removeprefix('z') }} {{ ','.join(['a', 'b']) }} {{ ''.join('abc') }} {{ '-'.join(d) }}
{{ ','.join([1]) }}
{{ 'a'.isalpha() }} {{ 'a1'.isalnum() }} {{ '1'.isdigit() }} {{ '²'.isdigit() }} {{ ' '.isspace() }} {{ ''.isalpha() }} {{ 'ab'.islower() }} {{ 'AB'.isupper() }} {{ 'A1'.isupper() }} {{ '1'.isupper() }}
{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d.items()|list }} {{ d|list }} {{ dict(d, z=1) }} {{ dict(a=1, b=2) }} {{ dict() }}
{{ items.items() }} {{ items['items'] }}
{{ list.append }}|{{ list.append is defined }}|{{ d.update }}|{{ d['pop'] }}|{{ list.sort is undefined }}
{{ list.append(1) }}
{{ d.update({}) }}
{{ d.pop('a') }}
{{ list.__class__ }}|{{ s.__len__ is defined }}|{{ ''.__class__.__mro__ }}
{{ s._x }}|{{ d._x is defined }}
{{ '{} {}'.format(1, 'a') }} {{ '{1} {0}'.format(1, 'a') }} {{ '{a} {b}'.format(a=1, b=2) }} {{ '{{}} {}'.format(1) }}
{{ '{} {} {}'.format(none, [1], undefined_thing) }}
{{ '{}'.format() }}
{{ '{a}'.format(b=1) }}
{{ '{'.format(1) }}
{{ '}'.format(1) }}
{{ words|sort }} {{ words|sort(reverse=true) }} {{ words|sort(case_sensitive=true) }} {{ list|sort }} {{ users|map(attribute='name')|sort|list }} {{ users|sort(attribute='name')|map(attribute='name')|list }} {{ users[:3]|sort(attribute='age,name')|map(attribute='name')|list }} {{ 'hello'|sort }} {{ [1.5, 1, 2, true]|sort }} {{ d|sort }} {{ [[2, 'b'], [1, 'c'], [2, 'a']]|sort }} {{ nested|sort(attribute=1, reverse=true) }}
{{ [1, 'a']|sort }}
{{ [{}, {}]|sort }}
{{ d|dictsort }} {{ d|dictsort(true) }} {{ d|dictsort(by='value') }} {{ d|dictsort(reverse=true) }} {{ d|dictsort(false, 'value', true) }} {{ {}|dictsort }}
{{ d|dictsort(by='x') }}
{{ list|dictsort }}
{{ d|items|list }} {{ undefined_thing|items|list }} {{ d|items|length }}
{{ words|unique|list }} {{ words|unique(true)|list }} {{ [1, 1.0, true, 2]|unique|list }} {{ users[:3]|unique(attribute='age')|map(attribute='name')|list }} {{ 'aAbB'|unique|join }}
{{ list|min }} {{ list|max }} {{ words|min }} {{ words|max }} {{ []|min }}| {{ users[:3]|max(attribute='age')|tojson }} {{ 'hello'|max }} {{ []|max is defined }} {{ [2, 1.5]|min }} {{ words|min(case_sensitive=true) }}
{{ list|sum }} {{ []|sum }} {{ [0.1, 0.2]|sum }} {{ users[:3]|sum(attribute='age') }} {{ [[1], [2]]|sum(start=[]) }} {{ list|sum(start=10) }} {{ [true, 1]|sum }}
{{ ['a']|sum }}
{{ list|first }} {{ list|last }} {{ s|first }} {{ s|last }} {{ []|first }}| {{ []|last is defined }} {{ d|first }} {{ d|last }} {{ range(5)|last }} {{ (1, 2)|last }} {{ list|select|first }} {{ emoji|last }}
{{ list|select|last }}
{{ s|length }} {{ list|count }} {{ d|length }} {{ emoji|length }} {{ ''|length }}
{{ s|list }} {{ d|list }} {{ range(3)|list }} {{ (1, 2)|list }} {{ emoji|list }}
{{ 5|list }}
{{ s|reverse }} {{ list|reverse|list }} {{ list|reverse|join(',') }} {{ emoji|reverse }} {{ (1, 2)|reverse|list }} {{ d|reverse|list }} {{ range(3)|reverse|list }} {{ list|select|reverse|list }}
{{ list|join }} {{ list|join(', ') }} {{ users|join('|', attribute='name') }} {{ ['a', none, 1.5, [1]]|join('-') }} {{ d|join(',') }} {{ 'abc'|join('.') }} {{ []|join('x') }}| {{ list|join(0) }}
{{ 5|join }}
{{ list|map('string')|list }} {{ words|map('upper')|join(' ') }} {{ users|map(attribute='age')|list }} {{ users|map(attribute='addr.zip.0', default='-')|list }} {{ users|map(attribute='nope')|list }} {{ words|map('replace', 'a', 'o')|list }} {{ [[1, 2], [3]]|map('sum')|list }} {{ [[3,1],[2]]|map('sort', reverse=true)|list }} {{ ['1', 'x']|map('int', default=7)|list }} {{ undefined_thing|map('upper')|list }}
{{ words|map('nope')|list }}
{{ words|map|list }}
{{ words|map(attribute='x', foo=1)|list }}
{{ words|map('upper', 1)|list }}
{{ list|select('odd')|list }} {{ list|reject('odd')|list }} {{ [0, 1, '', 'a', none]|select|list }} {{ [0, 1, '', 'a', none]|reject|list }} {{ list|select('gt', 1)|list }} {{ list|select('divisibleby', 2)|list }} {{ words|select('in', ['Apple'])|list }} {{ users|selectattr('age')|map(attribute='name')|list }} {{ users|rejectattr('age')|map(attribute='name')|list }} {{ users|selectattr('age', 'equalto', 31)|map(attribute='name')|list }} {{ users|selectattr('addr', 'defined')|map(attribute='name')|list }} {{ users|rejectattr('city', 'in', ['NY', 'CA'])|map(attribute='name')|list }} {{ users|selectattr('addr.zip.0', '==', 9)|list|length }}
{{ list|select('nope')|list }}
{{ users|selectattr|list }}
{{ list|select is defined }} {{ list|select|string is string }} {{ (list|select) is iterable }} {{ (list|select) is sequence }} {{ 2 in (list|select) }} {{ (list|map('string')) == 1 }}
{{ (list|select)|length }}
{{ (list|select)[0] }}|{{ (list|select)|tojson }}
{% set g = list|select %}{{ g|list }}{{ g|list }}{% for x in g %}{{ x }}{% else %}empty{% endfor %}
{{ no|default('x') }} {{ no|default('x', true) }} {{ ''|default('e', true) }} {{ 0|d(5, boolean=true) }} {{ undefined_thing|default }}| {{ d.zzz|default(d.a) }} {{ undefined_thing|default(none) }} {{ false|default('x') }}
{{ '42'|int }} {{ '42.9'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ 3.9|int }} {{ -3.9|int }} {{ true|int }} {{ ' 12 '|int }} {{ '1_000'|int }} {{ none|int }} {{ [1]|int }} {{ '1e3'|int }} {{ 'inf'|int }} {{ '٣'|int }} {{ '99999999999999999999'|int }} {{ '-5'|int }} {{ '+5'|int }} {{ '- 5'|int }}
{{ 1e400|int }}
{{ undefined_thing|int }}
{{ '3.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ '1e3'|float }} {{ 'nan'|float }} {{ '-inf'|float }} {{ ' 2 '|float }} {{ none|float }} {{ true|float }} {{ '1_0.5'|float }} {{ '.5'|float }} {{ '5.'|float }} {{ 'e5'|float }}
{{ 'a'|round }}
{{ -5|abs }} {{ 5.5|abs }} {{ (-5.5)|abs }} {{ true|abs }}
{{ 'a'|abs }}
{{ s|upper }} {{ s|lower }} {{ 'hello world'|capitalize }} {{ 'HELLO'|capitalize }} {{ 'hello world-foo (bar) [baz] {q} <z> it\'s'|title }} {{ 'ǆoO ßx'|title }} {{ 5|upper }} {{ none|lower }} {{ [1, 'A']|lower }}
[{{ '  x  '|trim }}] [{{ 'xxaxx'|trim('x') }}] [{{ 5|trim }}] [{{ spaces|trim }}]
{{ 'aXbX'|replace('X', '-') }} {{ 'aXbX'|replace('X', '-', 1) }} {{ 5|replace(5, 6) }} {{ 'abc'|replace('', '.') }} {{ 'a1'|replace(1, 2) }} {{ none|replace('N', 'n') }}
{{ multi|indent }}| {{ multi|indent(2, true) }}| {{ multi|indent('> ', blank=true) }}| {{ multi|indent(first=true, width=1) }}| {{ ''|indent }}| {{ 'x\n'|indent }}|
{{ 5|indent }}
{{ 5|string ~ 1 }} {{ none|string }} {{ [1]|string|length }} {{ 1.0|string }} {{ undefined_thing|string }}|
{{ html|escape }} {{ html|e }} {{ html|safe }} {{ html|safe|escape }} {{ html|safe|forceescape }} {{ 5|e }} {{ (html|e)|string is string }} {{ html|e is escaped }} {{ html is escaped }} {{ [html|safe] }}
{{ ('<b>'|safe) + '<i>' }} {{ '<i>' + ('<b>'|safe) }} {{ ('<b>'|safe) ~ '<i>' }} {{ ('<b>'|safe) * 2 }} {{ ('<{}>'|safe).format('<') }} {{ ('<b>'|safe).upper() + '<' }} {{ ('a<b'|safe).replace('a', '<') }} {{ ('<'|safe).join(['<', 'a']) }} {{ ('a b'|safe).split()[0] + '<' }} {{ ('<b>'|safe)[0:2] + '<' }} {{ ('<b>'|safe) == '<b>' }} {{ ['<']|join('<'|safe) }} {{ ('<'|safe)|upper ~ '' }}
{{ d|tojson }} {{ users|tojson }} {{ s|tojson }} {{ html|tojson }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ emoji|tojson(ensure_ascii=true) }} {{ nul|tojson }} {{ [1, 2.0, true, none, 1e20, 'nan'|float, 1e400, -1e400]|tojson }} {{ (1, [])|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ quote|tojson }} {{ {}|tojson }} {{ ''|tojson }}
{{ d|tojson(indent=2) }} {{ [1, [2, {}], {'a': []}]|tojson(indent=4) }} {{ d|tojson(separators=(',', ':')) }} {{ d|tojson(sort_keys=true) }} {{ d|tojson(indent='>') }} {{ d|tojson(indent=0) }} {{ [1, 2]|tojson(separators=[';', '=']) }} {{ {'b': {'z': 1, 'y': 2}, 'a': 3}|tojson(indent=1, sort_keys=true) }}
{{ {(1, 2): 3}|tojson }}
{{ range(3)|tojson }}
{{ d.items()|tojson }}
{{ {1: 2, 'a': 3}|tojson(sort_keys=true) }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(4) }} {{ n is integer }} {{ f is float }} {{ t is integer }} {{ t is boolean }} {{ n is number }} {{ t is number }} {{ s is string }} {{ d is mapping }} {{ list is sequence }} {{ s is sequence }} {{ d is sequence }} {{ s is iterable }} {{ n is iterable }} {{ no is none }} {{ t is true }} {{ t is false }} {{ 1 is true }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 5 is lower }} {{ range is callable }} {{ n is callable }} {{ no is sameas none }} {{ list is sameas list }} {{ [1] is sameas [1] }} {{ 1 is in [1, 2] }} {{ 1 is eq 1 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is le 1 }} {{ 2 is gt 1 }} {{ 2 is ge 2 }} {{ 1 is greaterthan 0 }} {{ 1 is lessthan 2 }} {{ 1 is equalto 1.0 }} {{ 'a' is not string }} {{ x is not defined }} {{ 1 is == 1 }}
{{ 1 is not none and 2 is odd }} {{ 5 is divisibleby 5 and 1 }} {{ (1, 2) is iterable }} {{ undefined_thing is iterable }} {{ undefined_thing is sequence }} {{ undefined_thing is mapping }} {{ none is iterable }} {{ d.keys() is sequence }} {{ d.keys() is iterable }} {{ range(3) is sequence }} {{ 1 is integer is defined }}
{{ 'a' is odd }}
{{ 1 is nope }}
{{ 1|nope }}
{% if false %}{{ 1|nope }}{% endif %}ok {{ (1|nope) if false else 2 }}
{% if true %}{{ 1|nope }}{% endif %}
{% if false %}{% for x in list %}{{ x|nope }}{% endfor %}{% endif %}
{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}
{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}
{% for x in [] %}x{% else %}none{% endfor %} {% for x in undefined_thing %}x{% else %}none{% endfor %} {% for c in 'añ' %}{{ c }}.{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %} {% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in list if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{{ loop.length }} {% else %}none{% endfor %} {% for x in list if x > 9 %}{{ x }}{% else %}none{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %} {% for x in [1] %}{% break %}{% else %}else{% endfor %} {% for x in [1] %}{% continue %}{% else %}else{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for a, b in [[1]] %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(x=1, y=[]) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% set ns.z = i %}{% endfor %}{{ ns.x }} {{ ns.z }} {{ ns.nope is defined }} {{ ns }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{% set ns.a, ns.b = 5, 6 %}{{ ns.a }}{{ ns['b'] }}
{% set ns = namespace(_x=1) %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set d.a = 1 %}
{% set undefined_thing.a = 1 %}
{% if t %}{% set y = 5 %}{% endif %}{{ y }} {% if no %}{% set z = 5 %}{% endif %}{{ z is defined }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (a, b) = (b, a) %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }}
{% set x %}a {{ n }} b{% endset %}[{{ x }}] {% set x | upper %}abc{% endset %}[{{ x }}] {% set x | replace('a', 'b') | length %}aaa{% endset %}[{{ x }}] {% set y = 1 %}{% set z %}{% set y = 2 %}{{ y }}{% endset %}{{ y }}{{ z }}
{% macro m(a, b=2, c=a ~ '!') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=4) }} {{ m() }} {{ m(b=1) }} {{ m(*[1, 2]) }} {{ m(**{'a': 9}) }} {{ m is callable }} {{ m('x')|length }} {{ m(1) is string }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2, 'x') }} {{ m(1) }} {{ m() }} {{ m(a=1) }} {{ m(1, 2, *[3, 4]) }}
{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(1, x=2, y='z') }} {{ m(a=1) }} {{ m(1, a=2) }} {{ m(1, **{'q': 3}) }}
{% macro m() %}{% for v in varargs %}{{ v }},{% endfor %}{{ kwargs|length }}{% endmacro %}{{ m(1, 2, b=3) }}{{ m() }}
{% macro m(varargs, kwargs=3) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}
{% macro m(varargs) %}{{ varargs }}{% endmacro %}{{ m(1, 2) }}
{% macro m() %}{{ caller(1) }}{{ varargs }}{{ kwargs }}{% endmacro %}{% call(x) m(5, k=6) %}c{{ x }}{% endcall %}
{% macro m() %}{{ varargs }}{% endmacro %}{{ m(1, k=2) }}
{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(1, k=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, x=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body {{ n }}{% endcall %} {% macro l(xs) %}{% for x in xs %}{{ caller(x, loop.index) }},{% endfor %}{% endmacro %}{% call(x, i) l(list) %}{{ i }}:{{ x }}{% endcall %}
{% macro m() %}{{ caller is defined }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ m() }} {% call m() %}x{% endcall %} {% macro n(caller=none) %}{{ caller }}{% endmacro %}{{ n() }}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m(caller) %}{{ caller() }}{% endmacro %}
{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }} {% macro g() %}{{ later }}{% endmacro %}{% set later = 'L' %}{{ g() }} {% for x in [1, 2] %}{% macro h() %}{{ x }}{% endmacro %}{{ h() }}{% endfor %}
{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }} {% macro q(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ q(5) }} {% macro w() %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ w() }}{% endfor %}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b')|upper %}aa{% endfilter %} {% filter trim %}  x {% endfilter %}
{% filter length %}abc{% endfilter %}
{% raw %}{{ x }} {% if %} {# c #}{% endraw %} {%- raw -%}  a  {%- endraw -%}  b
{% generation %}gen {{ n }}{% endgeneration %} {% generation %}{% set gx = 1 %}{% endgeneration %}{{ gx is defined }}
{{ raise_exception('bad thing') }}
{% if t %}{{ raise_exception('x' ~ n) }}{% endif %}
{{ -s|length }} {{ -n|abs }} {{ not n is odd }} {{ n is odd or t }} {{ 1 ~ 2 + 3 }} {{ 1 + 2 ~ 3 }} {{ 2 * 3 ~ 4 }} {{ [1, 2][0] + 1 }} {{ (n if t else 0) + 1 }} {{ 'a' if t else 'b' ~ 'c' }} {{ d.a + d['b'] * 2 }} {{ s|upper|lower|length }} {{ s.upper().lower() }} {{ (s|upper)[0] }} {{ s|default('x')|upper ~ '!' }} {{ not t == no }}
{{ {'a': 1}.a }} {{ [1, 2, 3,] }} {{ {'a': 1,} }} {{ (1, 2,) }} {{ dict(a=1,) }} {{ 1if t else 2 }} {{ [x for x] }}
{{ words[0][0]|upper ~ words[0][1:] }} {{ 'abc'|first|upper }} {{ list|length * 2 }} {{ list | map('string') | join }}
{{ '' is string and '' is not none }} {{ d.a is number }} {{ users[3].addr.zip|last }} {{ users|map(attribute='name')|map('lower')|list }} {{ ['a', 'b'] is iterable }} {{ 'x' in ['x'] and 'y' not in ['x'] }}
{{ foo is defined and foo.bar }} {{ foo is not defined or foo }} {{ foo|default({})|length }} {{ (foo|default({'a': 1})).a }} {{ foo is defined }}
{{ True and False or None }} {{ none == None }} {{ none is none }} {{ [none] }} {{ none|default('x') }} {{ none or 'y' }}
{{ messages[0]['role'] }} {{ messages[0].content|trim }} {{ messages|length }} {{ messages[-1].role == 'user' }} {{ messages[1:] }} {{ messages[0].get('name', 'none') }} {{ messages|tojson }} {{ messages[0] }}
{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ tools is defined }} {{ bos_token is defined }}
{% for t in tools %}{% endfor %}
{# c #}{#- d -#} x {#+ e +#} {{- 1 -}} y {{+ 2 }} {%- if t -%} z {%- endif -%} w {%+ if t %} v {%+ endif %}
{% if %}{% endif %}
{% for %}{% endfor %}
{% unknown %}
{% endif %}
{% if t %}
{{ 1
{{ 'abc }}
{{ (1, 2] }}
{{ 1 + }}
{{ .a }}
{{ a b }}
{{ @ }}
{{ }}
{# open
{% raw %} open
{% set 1 = 2 %}
{% set none = 2 %}
{% for loop in list %}{% endfor %}
{% for x in list %}{% set loop = 1 %}{% endfor %}
{% break %}
{% for x in list %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% for x in list %}{% generation %}{% continue %}{% endgeneration %}{% endfor %}
{% macro m(a=1, b) %}{% endmacro %}
{% call 5 %}{% endcall %}
{% do list %}
{% include 'x' %}
{% import 'x' as y %}
{% extends 'x' %}
{{ f(a=1, 2) }}
{{ range(**{}, 1) }}
{{ m(*[1], *[2]) }}
{{ '\x4' }}
{{ x is defined is none }}
{{ '\é' }}
{{ loop is defined }} {{ caller is defined }} {{ varargs is defined }} {{ namespace is callable }} {{ dict is defined }}
{{ (1, 2)|tojson }} {{ 'a' in ('a', 'b') }} {{ [1, 2] in nested }} {{ {'a': 1} == {'a': 1.0} }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ [1, [2]] == [1, [2.0]] }} {{ range(3) == range(0, 3) }} {{ 'nan'|float == 'nan'|float }} {{ 1 != 1.0 }} {{ '1' == 1 }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %A %a %B %b %j %y %p %I %U %w %f %% %d %-d %e') }} {{ strftime_now('') }}|{{ strftime_now('x%Zy%zz') }}
{{ strftime_now() }}
{{ strftime_now(5) }}
{{ d.keys()|list|sort }} {{ d.values()|sum }} {{ d.keys() }} {{ 'a' in d.keys() }} {{ 1 in d.values() }} {{ ('a', 2) in d.items() }} {{ d.items()|length }} {{ d.keys()|first }} {{ d.items()|map('first')|list }} {{ d.keys() == d.keys() }}
{{ 10|string|length }} {{ 1e3|int }} {{ 3|float|string }} {{ '5' * 3 }} {{ '3'|int * 2 }}
{{ (1 < 2) + 1 }} {{ [] or {} or 'z' }} {{ [0][0] or 'z' }} {{ 0.0 or 'z' }} {{ '0' and 'z' }} {{ range(0) or 'z' }}
{{ u|title }} {{ u|capitalize }} {{ u|upper|length }} {{ u|reverse }} {{ u[:3] }} {{ u|list|length }} | {{ u is lower }}
{{ 99999999999999999999 }} {{ huge }} {{ [huge, -5] }} {{ huge|tojson }} {{ {'k': huge}|tojson }} {{ huge|string|length }} {{ huge is number }} {{ huge is integer }} {{ huge is float }} {{ huge|int }} {{ not huge }} {{ 'n=' ~ huge }} {{ '99999999999999999999'|int }} {{ '-00099999999999999999999'|int }}
{{ huge == 123456789012345678901234567890 }} {{ huge == 1 }} {{ huge > 9223372036854775807 }} {{ 5 < huge }} {{ huge < 223456789012345678901234567890 }} {{ huge > 99999999999999999999 }} {{ 1.5 < huge }} {{ huge < 1e300 }} {{ [huge, 3, 99999999999999999999]|sort }} {{ {huge: 'x'}[huge] }} {{ huge in [1, huge] }}
{{ '{"a": [1, -2.5, true, null, "é\\u00e9"], "b": {}}'|from_json }} {{ '"x"'|from_json|upper }} {{ ('{"k": {"z": 1, "y": 2}}'|from_json).k|tojson }} {{ '123456789012345678901'|from_json }} {{ ' [1, 2] '|from_json|length }} {{ d|tojson|from_json == d }}
{{ '{'|from_json }}
{{ ''|from_json }}
{{ 'x y'|from_json }}
{{ '[1] 2'|from_json }}
{{ d|from_json }}
{{ none|from_json }}
{{ undefined_thing|from_json }}
""".strip("\n").split("\n")

MULTILINE = [
    "a\n{% if t %}\nb\n{% endif %}\nc\n",
    "  {% if t %}  \n  b\n  {%- endif %}\n c",
    "a\n\n{%- if t %}\n\nb {% endif +%}\nc\n\n",
    "{% for x in list %}\n  {{ x }}\n{% endfor %}\nend\n",
    "a {# c #}\nb\n  {# d #}\nc {#- e -#} \n d",
    "x\r\ny\rz\n",
    "\n\na\n",
    "a\n\n",
    "",
    "\n",
    "  {{ 1 }}  \n  {{- 2 -}}  \n 3",
    "{% raw %}\n a \n{% endraw %}\nb",
    "  {%- raw %} a {% endraw -%}\n b",
    "a\n  {%+ if t %}b{% endif %}",
    "{{ 'x\ny' }}|{{ [1,\n 2] }}",
    "{% set x = [\n 1,\n 2] %}\n{{ x }}",
    "a{% if t -%}\n  b\n{%- endif %}\n",
    "\t{% if t %}\tb\t{% endif %}\n",
    "a \u00a0{%- if t %}b{% endif %}",
    "\u3000{% if t %}b{% endif %}",
    "line\n   {# x #}   {% if t %}y{% endif %}\n",
    "{% if t %}\n\n\nx{% endif %}",
    "{#\n multi\n line #}\nx",
    "{% raw -%}\n  x\n{%- endraw +%}\ny",
    "a\n{{ 1 }}\n{{ 2 -}}\n\n b",
    "{%- set a = 1 -%}\n\n{{ a }}\n",
    "{% macro m() %}\n  in\n{% endmacro %}\n{{ m() }}|\n",
    "{% for x in list -%}\n {{ x }},\n{%- endfor %}",
    "{{ 1 }}\n",
    "{% if t %}a{% endif %}\n\n",
    "x {% if t %}\n y\n   {% else %}\n z\n {% endif %}\n w",
    "{{ '{{' }} {{ '%}' }} {{ \"#}\" }} }} %} #}",
    "{ { } } {{ {} }} {{{}}}",
    "{{ {'a': {'b': 1}}['a']['b']}}",
    "\n  {%- if t %}\n  a\n  {%- elif n %}\n  b\n  {%- else %}\n  c\n  {%- endif %}\n",
]


def render(source):
    variables = json.loads(json.dumps(VARIABLES))
    variables.update(tools=None, documents=None, add_generation_prompt=False)
    try:
        return {"output": utils._cached_compile_jinja_template(source).render(**variables)}
    except Exception:  # every failure is one
        return {"error": True}


def main():
    import datetime

    jinja2.defaults.DEFAULT_FILTERS["from_json"] = json.loads

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromisoformat(NOW)

    utils.datetime = Frozen
    cases = []
    for source in LINES + MULTILINE:
        cases.append({"template": source, **render(source)})
        parts = re.findall(r"\{\{ .*? \}\}", source)
        if "error" in cases[-1] and len(parts) > 1 and "{%" not in source:  # which of them fails?
            cases += [{"template": part, **render(part)} for part in parts]
    for case in cases:
        text = case.get("output")
        if text is not None and " at 0x" in text:
            raise SystemExit(f"an address in the output of {case['template']!r}: {text!r}")
        if text is not None:
            text.encode()
    print(
        '{"made by": "tools/make_template_goldens.py, jinja2 3.1.6, MarkupSafe 3.0.3, transformers 5.23, Python 3.11",'
    )
    print('"variables": ' + json.dumps({**VARIABLES, "now": NOW}, ensure_ascii=False) + ",")
    print('"cases": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]}")


if __name__ == "__main__":
    main()
