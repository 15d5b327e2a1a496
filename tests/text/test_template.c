/* Chat templates: what template.h promises about origins, continuing a message, bounds and a model's files. As
 * "test_template render FILE" it reads one JSON object a line and answers {"prompt": …} or {"error": …}: the other side
 * of tests/text/check_templates.py. FILE "-": each line brings its own "template". */
#include "test.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/thread.h"
#include "text/jinja/template.h"

/* One line of input to one line of output; template NULL: the line names its own. */
static bool answer_line(const Template *template, Slice line, Buffer *answer, Error *error) {
    if (template) return template_debug_prompt(template, line, answer, error);
    Arena arena = {0};
    const Json *json = json_parse(&arena, line, error), *source = json_get(json, "template");
    Template *own = source && source->type == JSON_STRING ? template_compile(json_slice(source), error) : NULL;
    bool ok = own && template_debug_prompt(own, line, answer, error);
    template_free(own);
    arena_free(&arena);
    return ok;
}

static int render_lines(const char *path) {
    Error error = {0}, compile_error = {0};
    Buffer source = {0}, answer = {0};
    bool from_lines = strcmp(path, "-") == 0;
    Template *template = NULL;
    if (!from_lines && file_read(path, TEMPLATE_SOURCE_MAX, &source, &compile_error)) {
        template = template_compile(buffer_view(&source), &compile_error);
    }
    char *line = NULL;
    size_t capacity = 0;
    ssize_t size;
    while ((size = getline(&line, &capacity, stdin)) > 0) {
        error = compile_error;
        buffer_clear(&answer);
        bool ok = (template || from_lines) && answer_line(template, (Slice){line, (size_t)size}, &answer, &error);
        if (!ok) {
            buffer_clear(&answer);
            buffer_text(&answer, "{\"error\":");
            json_write_string(&answer, slice_of(error.text));
            buffer_text(&answer, "}");
        }
        printf("%.*s\n", (int)answer.size, answer.data);
        fflush(stdout);
    }
    free(line);
    buffer_free(&answer);
    buffer_free(&source);
    template_free(template);
    return 0;
}

/* Renders source with variables (JSON); false with the error's text in out. Spans are written as [template] and {data}.
 */
static bool render(const char *source, const char *variables, bool spans, Buffer *out, Error *error) {
    Arena arena = {0};
    Rendered rendered = {0};
    *error = (Error){0};
    buffer_clear(out);
    Template *template = template_compile(slice_of(source), error);
    const Json *json = template ? json_parse(&arena, slice_of(variables), error) : NULL;
    bool ok = json && template_render(template, json, &rendered, error);
    for (size_t i = 0; ok && spans && i < rendered.span_count; i++) {
        buffer_text(out, rendered.spans[i].from_template ? "[" : "{");
        buffer_slice(out, rendered.spans[i].text);
        buffer_text(out, rendered.spans[i].from_template ? "]" : "}");
    }
    if (ok && !spans) buffer_slice(out, buffer_view(&rendered.text));
    if (!ok) buffer_text(out, error->text);
    rendered_free(&rendered);
    template_free(template);
    arena_free(&arena);
    return ok;
}

static void check_text(const char *source, const char *variables, bool spans, const char *want) {
    Buffer out = {0};
    Error error;
    bool ok = render(source, variables, spans, &out, &error);
    TEST_MSG(
        ok && slice_is(buffer_view(&out), want), "%s\n  want %s\n  got  %s", source, want, out.data ? out.data : "");
    buffer_free(&out);
}

static void check_fails(const char *source, const char *variables, ErrorCode code, const char *part) {
    Buffer out = {0};
    Error error;
    bool ok = render(source, variables, false, &out, &error);
    TEST_MSG(!ok && error.code == code && strstr(error.text, part), "%s\n  want failure %d with '%s', got %d: %s",
        source, code, part, error.code, out.data ? out.data : "");
    buffer_free(&out);
}

static void test_origins(void) {
    const char *v =
        "{\"u\":\"<|x|>\",\"w\":\"B\",\"n\":5,\"bos_token\":\"<s>\",\"l\":[\"a\",\"b\"],\"d\":{\"k\":\"v\"},"
        "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"<|im_end|>\",\"content\":\"there\"}]}";
    check_text("a{{ u }}b", v, true, "[a]{<|x|>}[b]");
    check_text("{{ bos_token }}x", v, true, "[<s>x]");
    check_text("{{ '<|' + u + '|>' }}", v, true, "[<|]{<|x|>}[|>]");
    check_text("{{ 'a' ~ n ~ u ~ 'b' ~ true }}", v, true, "[a5]{<|x|>}[bTrue]");
    check_text("{{ ('a' + u + 'b')[1:5] }}", v, true, "{<|x|}");
    check_text("{{ ('a' + u + 'b')[::-1] }}", v, true, "[b]{>|x|<}[a]");
    check_text("{{ (u + 'y' + w)|upper }}", v, true, "{<|X|>}[Y]{B}");
    check_text("{{ ('a' + w)|replace('B', 'Z') }}{{ w|replace('B', 'Z') }}", v, true, "[aZZ]");
    check_text("{{ ('-' + u + '-').replace('x', w + '!') }}", v, true, "[-]{<|B}[!]{|>}[-]");
    check_text("{{ l|join(', ') }}", v, true, "{a}[, ]{b}");
    check_text("{{ d }}", v, true, "[{']{k}[': ']{v}['}]");
    check_text("{{ d|tojson }}", v, true, "[{\"]{k}[\": \"]{v}[\"}]");
    check_text("{{ '{}-{b}'.format(u, b=w) }}", v, true, "{<|x|>}[-]{B}");
    check_text("{{ (d|tojson|from_json).k }}{{ '[\"t\"]'|from_json|first }}", v, true, "{v}[t]");
    check_text("{{ ('x ' + u + ' y').split() }}", v, true, "[['x', ']{<|x|>}[', 'y']]");
    check_text("{% set b %}<{{ u }}>{% endset %}{{ b }}{{ b|trim('<>') }}", v, true, "[<]{<|x|>}[>]{|x|}");
    check_text("{% macro m(x) %}({{ x }}){% endmacro %}{{ m(u)|lower }}", v, true, "[(]{<|x|>}[)]");
    check_text("{{ (u + '  ')|indent(2, true) }}", v, true, "[  ]{<|x|>}[  ]");
    check_text("{{ u|escape }}", v, true, "{&lt;|x|&gt;}");
    check_text("{% for k in d %}{{ k }}{% endfor %}{{ d.keys()|first }}", v, true, "{kk}");
    check_text("{% for k in dict(**d) %}{{ k }}{% endfor %}{{ dict(k=1)|first }}", v, true, "{k}[k]");
    check_text("{% macro m() %}{{ kwargs|first }}{% endmacro %}{{ m(**d) }}{{ m(k=1) }}", v, true, "{k}[k]");
    check_text("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", v, true,
        "[<|user|>]{Hi}[<|]{<|im_end|>}[|>]{there}");
    check_text("{% set ns = namespace(s='') %}{% for i in range(9) %}{% set ns.s = ns.s + 't' + w %}{% endfor %}{{ "
               "ns.s[15:] }}",
        v, true, "{B}[t]{B}");
    check_text("{{ ('ß' + w + u)|title }}{{ 'x'|upper }}", v, true, "[SS]{b<|x|>}[X]");
    check_text("", v, true, "");
}

static void test_messages(void) {
    const char *thought = "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"reasoning\":\"r\"}]}";
    check_text("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}{{ messages[0]|list|join(',') }}", thought,
        false, "rrthinking,role,content,reasoning,reasoning_content");
    check_text("{{ messages[0]|tojson }}", "{\"messages\":[{\"thinking\":null,\"reasoning_content\":\"r\"}]}", false,
        "{\"thinking\": null, \"reasoning_content\": \"r\"}");
    check_text("{{ messages[0]|tojson }}", "{\"messages\":[{\"reasoning_content\":null,\"thinking\":\"t\"}]}", false,
        "{\"thinking\": \"t\", \"reasoning_content\": \"t\"}");
    check_text("{{ tools is none }}{{ documents is none }}{{ messages }}{{ add_generation_prompt }}", "{}", false,
        "TrueTrue[]False");
    check_text("{{ range is defined }}{{ range }}", "{\"range\":3}", false, "True3");
    check_fails("x", "{\"messages\":{}}", ERROR_FORMAT, "messages must be a list of objects");
    check_fails("x", "{\"messages\":[1]}", ERROR_FORMAT, "messages must be a list of objects");
    check_fails("x", "{\"tools\":[1]}", ERROR_FORMAT, "tools must be a list of objects");
    check_fails("x", "[]", ERROR_FORMAT, "must be an object");
    check_text("{{ strftime_now('%d %B %Y, %A %H:%M:%S.%f') }}", "{\"now\":\"2024-02-29T23:59:01.25\"}", false,
        "29 February 2024, Thursday 23:59:01.250000");
    check_text("{{ strftime_now('%F %T %j') }}", "{\"now\":\"2025-12-31\"}", false, "2025-12-31 00:00:00 365");
    check_text("{{ strftime_now('%Y')|int > 2024 }}", "{}", false, "True");
    check_fails("x", "{\"now\":\"yesterday\"}", ERROR_FORMAT, "now must be");
}

static void test_continue(void) {
    const char *plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    const char *trimmed = "{% for m in messages %}<{{ m.role }}> {{ m.content|trim }}</>{% endfor %}";
    const char *v =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"one, two \"}],"
        "\"continue_final_message\":true}";
    check_text(plain, v, false, "<user>q</><assistant>one, two ");
    check_text(plain, v, true, "[<user>]{q}[</><assistant>]{one, two }");
    check_text(trimmed, v, false, "<user> q</><assistant> one, two");
    check_text(plain, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"continue_final_message\":false}", false,
        "<user>q</>");
    check_text("{{ messages[0].content[-1].text }}|{{ messages[0].content[0].text }}",
        "{\"messages\":[{\"content\":[{\"text\":\"a\"},{\"text\":\"b\"}]}],\"continue_final_message\":true}", false,
        "b");
    check_text("{{ messages[0].thinking }}|{{ messages[0].content }}",
        "{\"messages\":[{\"content\":\"c\",\"reasoning_content\":\"r\"}],\"continue_final_message\":\"reasoning_"
        "content\"}",
        false, "r");
    check_fails(plain, "{\"messages\":[],\"continue_final_message\":true}", ERROR_FORMAT, "the conversation is empty");
    check_fails(plain, "{\"messages\":[{\"role\":\"user\",\"content\":null}],\"continue_final_message\":true}",
        ERROR_FORMAT, "nothing to continue");
    check_fails("{{ messages[0].content[:3] }}",
        "{\"messages\":[{\"content\":\"hello\"}],\"continue_final_message\":true}", ERROR_FORMAT, "does not appear");
    check_fails("{{ messages[0]['con' 'tent'] }}",
        "{\"messages\":[{\"content\":\"hello\"}],\"continue_final_message\":true}", ERROR_FORMAT,
        "does not use the field");
    check_fails(plain,
        "{\"messages\":[{\"content\":\"x\"}],\"continue_final_message\":true,\"add_generation_prompt\":true}",
        ERROR_FORMAT, "cannot be combined");
    check_fails(
        plain, "{\"messages\":[{\"content\":\"x\"}],\"continue_final_message\":3}", ERROR_FORMAT, "neither a boolean");
    check_fails(plain, "{\"messages\":[{\"role\":\"\",\"content\":5}],\"continue_final_message\":true}", ERROR_FORMAT,
        "not a string");
}

static void test_errors(void) {
    check_fails("a\nb\n{% if x %}\n", "{}", ERROR_FORMAT, "line 3: ");
    check_fails("a\n\n{{ 1 + }}", "{}", ERROR_FORMAT, "line 3: ");
    check_fails("{# x\ny #}\n{{ nope.x }}", "{}", ERROR_FORMAT, "line 3: 'nope' is undefined");
    check_fails(
        "\n{{ 'a' + 1 }}", "{}", ERROR_FORMAT, "line 2: TypeError: can only concatenate str (not \"int\") to str");
    check_fails("\n\n{% for m in messages %}\n{{ raise_exception('no\\nway') }}{% endfor %}", "{\"messages\":[{}]}",
        ERROR_FORMAT, "line 4: no way");
    check_fails("{{ 1|nope }}", "{}", ERROR_FORMAT, "line 1: No filter named 'nope'");
    check_fails("{{ 1 is nope }}", "{}", ERROR_FORMAT, "No test named 'nope'");
    check_fails("{{ 'x'|from_json }}", "{}", ERROR_FORMAT, "line 1: JSONDecodeError: line 1");
    check_fails("{{ {}|from_json }}", "{}", ERROR_FORMAT, "the JSON object must be str, not dict");
    check_fails("\xff", "{}", ERROR_FORMAT, "not UTF-8");
    check_fails("{{ '\\ud800' }}", "{}", ERROR_FORMAT, "broken escape");
}

/* What jinja2 has and no chat template uses fails and is named. */
static void test_left_out(void) {
    static const char *const filters[] = {"attr", "batch", "center", "filesizeformat", "format", "groupby", "pprint",
        "random", "round", "slice", "striptags", "truncate", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"};
    static const char *const globals[] = {"cycler", "joiner", "lipsum"};
    static const char *const methods[] = {"casefold", "center", "encode", "expandtabs", "format_map", "index",
        "isdecimal", "isidentifier", "istitle", "ljust", "partition", "rfind", "swapcase", "translate", "zfill"};
    static const char *const tags[] = {"autoescape false", "block b", "extends 'x'", "from 'x' import y",
        "import 'x' as y", "include 'x'", "print 1", "with a = 1"};
    char source[80], why[80];
    for (size_t i = 0; i < COUNT_OF(filters); i++) {
        snprintf(source, sizeof source, "{{ messages|%s }}", filters[i]);
        snprintf(why, sizeof why, "line 1: No filter named '%s'", filters[i]);
        check_fails(source, "{}", ERROR_FORMAT, why);
    }
    for (size_t i = 0; i < COUNT_OF(globals); i++) {
        snprintf(source, sizeof source, "{{ %s('a') }}", globals[i]);
        snprintf(why, sizeof why, "line 1: '%s' is undefined", globals[i]);
        check_fails(source, "{}", ERROR_FORMAT, why);
    }
    for (size_t i = 0; i < COUNT_OF(methods); i++) {
        snprintf(source, sizeof source, "{{ 'x'.%s('a') }}", methods[i]);
        snprintf(why, sizeof why, "line 1: 'str object' has no attribute '%s'", methods[i]);
        check_fails(source, "{}", ERROR_FORMAT, why);
    }
    for (size_t i = 0; i < COUNT_OF(tags); i++) {
        snprintf(source, sizeof source, "{%% %s %%}", tags[i]);
        snprintf(why, sizeof why, "line 1: '%.*s' is not supported", (int)strcspn(tags[i], " "), tags[i]);
        check_fails(source, "{}", ERROR_UNSUPPORTED, why);
    }
    check_fails("{% for x in [1] recursive %}{% endfor %}", "{}", ERROR_UNSUPPORTED, "'recursive' is not supported");
    check_fails("{% macro m(a) %}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}", "{}", ERROR_FORMAT,
        "line 1: TypeError: macro 'm' was given an argument that it does not take");
    check_fails("{% macro m(a) %}{% endmacro %}{{ m(1, b=2) }}", "{}", ERROR_FORMAT, "macro 'm' was given an argument");
    check_fails("{{ '%s' % 'x' }}", "{}", ERROR_UNSUPPORTED, "formatting with % is not supported");
    check_fails("{{ '{:>3}'.format('x') }}", "{}", ERROR_UNSUPPORTED, "the field '{:>3}' is not supported");
    check_fails("{{ '{0.a}'.format('x') }}", "{}", ERROR_UNSUPPORTED, "the field '{0.a}' is not supported");
}

/* Integers beyond 64 bits keep their digits; nothing is calculated with them. */
static void test_long_integers(void) {
    const char *v = "{\"l\":123456789012345678901234567890,\"m\":-9223372036854775809,\"i\":9223372036854775807}";
    check_text("{{ l }} {{ [l, m]|tojson }} {{ {'k': m} }} {{ i }}", v, false,
        "123456789012345678901234567890 [123456789012345678901234567890, -9223372036854775809] "
        "{'k': -9223372036854775809} 9223372036854775807");
    check_text("{{ l > i }}{{ m < i }}{{ l == l }}{{ m == l }}{{ -i > m }}{{ [l, i, m]|sort }}", v, false,
        "TrueTrueTrueFalseTrue[-9223372036854775809, 9223372036854775807, 123456789012345678901234567890]");
    static const char *const sums[] = {"l + 1", "1.5 * l", "-l", "l // 2", "l % 2", "l ** 2", "i + 1", "i * i",
        "2 ** 63", "l is odd", "l|float", "l|abs|int + 1 if false else l - l", "1e30|int"};
    for (size_t i = 0; i < COUNT_OF(sums); i++) {
        char source[80];
        snprintf(source, sizeof source, "{{ %s }}", sums[i]);
        check_fails(source, v, ERROR_FORMAT, "OverflowError: an integer beyond 64 bits");
    }
}

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Templates that grow, nest or never end. */
static void test_bounds(void) {
    static const char *const hostile[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor "
        "%}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% "
        "endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ "
        "ns.s|length }}",
        "{% set ns = namespace(s=[]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ "
        "ns.s|tojson }}",
        "{% set a = namespace(s=[]) %}{% set b = namespace(s=[]) %}{% for i in range(100) %}{% set a.s = [a.s, a.s] "
        "%}{% set b.s = [b.s, b.s] "
        "%}{% endfor %}{{ a.s == b.s }}",
        "{% set ns = namespace(s=[]) %}{% for i in range(100000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace(t=()) %}{% for i in range(1000) %}{% for j in range(1000) %}{% set ns.t = (ns.t,) %}"
        "{% endfor %}{% endfor %}{{ {}[ns.t] }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 2 ** 10 ** 9 }}",
        "{{ 10 ** 10 ** 10 ** 10 }}",
        "{{ ('x' * 10 ** 7)|indent(10 ** 9) }}",
        "{{ ('a' * 10 ** 6).replace('a', 'b' * 10 ** 6) }}",
        "{{ ('a' * 5000000).strip('b' * 5000000 + 'a') }}",
        "{{ ('a' * 10 ** 7).rsplit('a' * 5000000 + 'b')|length }}",
        "{{ ('a' * 20000000).split('a')|length }}",
        "{{ (range(100000)|list)|map('string')|join|from_json|length }}",
        "{{ ('é' * 10 ** 7)[5000000] }}",
        "{{ strftime_now('%c' * 100000) }}",
        "{% for i in range(100000) %}{{ ('é' * 10000)[9000] }}{% endfor %}",
        "{% for x in range(100000) %}{% for y in range(100000) if x < y %}{{ loop.last }}{% endfor %}{% endfor %}",
        "{% set l = range(100000)|list %}{% for x in l %}{{ l|sort|length }}{% endfor %}",
        "{% set l = range(100000)|list %}{% for x in l %}{{ 'y' in l }}{% endfor %}",
        "{% set d = namespace(d={}) %}{% for x in range(100000) %}{% set d.d = dict(d.d, **{'k' ~ x: x}) %}{% endfor "
        "%}",
        "{% set x = 'ab' * 1000000 %}{% for i in range(100000) %}{{ x|upper|length }}{% endfor %}",
        "{{ ('{' * 100000).format(1) }}",
        "{{ ('{0}' * 3000000).format('x' * 1000) }}",
        "{{ ('{' * 100000)|from_json }}",
        "{{ ('[' + '1,' * 20000000 + '1]')|from_json|length }}",
        "{{ ('\"' + 'a' * 60000000 + '\"')|from_json|length }}",
        "{% set s = range(100000)|list|tojson %}{% for i in range(100000) %}{{ s|from_json|length }}{% endfor %}",
        "{{ ('9' * 3000)|int ~ ('9' * 300000)|int }}",
        "{{ 7 ** 2000 * 7 ** 2000 }}",
        "{{ (('x' * 1000 + ' ') * 100000)|title|length }}",
        "{{ range(9223372036854775807) }}",
        "{{ [1,2,3][-9223372036854775808:9223372036854775807:9223372036854775807] }}",
        "{{ 'abc'[::-9223372036854775808] }}",
        "{{ -9223372036854775808 // -1 }}",
        "{{ (-9223372036854775807 - 1)|abs }}",
        "{% set ns = namespace(s='') %}{% for i in range(100000) %}{% set ns.s = ns.s + 'xxxxxxxxxxxxxxxx' %}{% endfor "
        "%}{{ ns.s|length }}",
        "{% set ns = namespace(s='') %}{% for i in range(100000) %}{% set ns.s = 'xxxxxxxxxxxxxxxx' + ns.s %}{% endfor "
        "%}{{ ns.s|upper|length }}",
    };
    /* A sanitizer's build runs all of them. */
    for (size_t i = 0; i < COUNT_OF(hostile); i += test_sampled() && !SANITIZED ? 3 : 1) {
        Buffer out = {0};
        Error error;
        double start = cpu_seconds();
        (void)render(hostile[i], "{}", false, &out, &error);
        double seconds = cpu_seconds() - start;
        double allowed = TEMPLATE_CPU_MS * 1e-3;
        TEST_MSG(seconds < allowed, "%.80s took %.2f s of CPU: %.60s", hostile[i], seconds, out.data ? out.data : "");
        buffer_free(&out);
    }
}

static char *repeated(const char *text, size_t count, const char *middle, const char *after) {
    Buffer out = {0};
    for (size_t i = 0; i < count; i++) buffer_text(&out, text);
    buffer_text(&out, middle);
    for (size_t i = 0; i < count; i++) buffer_text(&out, after);
    return out.data;
}

static void test_nesting(void) {
    static const struct {
        const char *before, *middle, *after;
    } nests[] = {{"{% if 1 %}", "x", "{% endif %}"}, {"{% for x in [1] %}", "x", "{% endfor %}"}, {"{{ (", "1", ") }}"},
        {"[", "", "]"}, {"{{ [", "1", "] }}"}, {"{{ {1:", "1", "} }}"}, {"{% generation %}", "", "{% endgeneration %}"},
        {"{{ 1 if ", "1", " else 2 }}"}, {"{% macro m() %}", "", "{% endmacro %}"}, {"{{ not ", "1", " }}"},
        {"{{ -", "1", " }}"}, {"{{ a.b", "1", " }}"}, {"{{ 1 + ", "1", " }}"}, {"{{ 1 ** ", "1", " }}"},
        {"{{ x[", "1", "] }}"}, {"{{ f(", "1", ") }}"}, {"{{", "", "}}"}, {"{%", "", "%}"}, {"{#", "", "#}"},
        {"{% if x %}a{% elif ", "1", " %}{% endif %}"}, {"{{ x|f(", "1", ") }}"}, {"{{ x is f(", "1", ") }}"},
        {"{{ 'a' ", "1", " }}"}};
    for (size_t i = 0; i < COUNT_OF(nests); i++) {
        char open[64];
        snprintf(
            open, sizeof open, "%s", strncmp(nests[i].before, "{{ ", 3) == 0 ? nests[i].before + 3 : nests[i].before);
        bool expression = strncmp(nests[i].before, "{{ ", 3) == 0;
        char close[64];
        snprintf(close, sizeof close, "%s", nests[i].after);
        if (expression) close[strlen(close) - 3] = 0;
        char *inner = repeated(open, 20000, nests[i].middle, close);
        Buffer source = {0}, out = {0};
        if (expression) buffer_text(&source, "{{ ");
        buffer_text(&source, inner);
        if (expression) buffer_text(&source, " }}");
        Error error;
        double start = cpu_seconds();
        (void)render(source.data, "{}", false, &out, &error);
        TEST_MSG(cpu_seconds() - start < TEMPLATE_CPU_MS * 1e-3, "%s nested: too slow", nests[i].before);
        buffer_free(&source);
        buffer_free(&out);
        free(inner);
    }
}

/* One template rendered by several threads at once: compared, and watched by the thread sanitizer. */
static Template *shared;

static void *render_shared(void *argument) {
    Arena arena = {0};
    Error error = {0};
    const Json *json =
        json_parse(&arena, SLICE("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":3}"), &error);
    bool *same = argument;
    *same = json != NULL;
    for (int i = 0; i < 50 && *same; i++) {
        Rendered out;
        *same =
            template_render(shared, json, &out, &error) && slice_is(buffer_view(&out.text), "userXA&lt;2True[1, 2]b<b");
        rendered_free(&out);
    }
    arena_free(&arena);
    return NULL;
}

static void test_threads(void) {
    enum { THREADS = 4 };
    Thread threads[THREADS];
    bool same[THREADS];
    Error error = {0};
    shared = template_compile(
        SLICE("{% macro m(a, b='<') %}{{ a|upper }}{{ b|e }}{% endmacro %}{{ messages[0].role }}{{ 'x'|upper }}"
              "{{ m('a') }}{{ n - 1 }}{{ 'a' in 'ab' }}{{ [1, 2] }}{{ 'b' ~ '<' + 'b' }}"),
        &error);
    TEST_MSG(shared != NULL, "%s", error.text);
    if (!shared) return;
    for (int i = 0; i < THREADS; i++) TEST(thread_start(&threads[i], render_shared, &same[i], "render", &error));
    for (int i = 0; i < THREADS; i++) {
        thread_join(threads[i]);
        TEST(same[i]);
    }
    template_free(shared);
}

static bool write_text(const char *directory, const char *name, const char *text) {
    char path[512];
    Error error;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return file_write_atomic(path, slice_of(text), &error);
}

static void check_open(const char *directory, const char *want) {
    Error error = {0};
    Arena arena = {0};
    Rendered rendered = {0};
    Template *template = template_open(directory, &error);
    bool ok = template && template_render(template, json_parse(&arena, SLICE("{}"), &error), &rendered, &error);
    TEST_MSG(ok && slice_is(buffer_view(&rendered.text), want), "want %s: %s", want, error.text);
    rendered_free(&rendered);
    template_free(template);
    arena_free(&arena);
}

static void test_files(void) {
    char directory[] = "/tmp/test_template_XXXXXX", path[512];
    Error error = {0};
    Buffer tokens = {0};
    if (!mkdtemp(directory)) return;
    TEST(!template_open(directory, &error) && error.code == ERROR_NOT_FOUND);
    TEST(template_token_variables(directory, &tokens, &error) && tokens.size == 0);
    TEST(write_text(directory, "chat_template.json", "{\"chat_template\":\"json {{ 1 }}\"}"));
    check_open(directory, "json 1");
    TEST(write_text(directory, "tokenizer_config.json",
        "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"pad_token\":null,"
        "\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},{\"name\":\"default\",\"template\":\"list {{ 2 "
        "}}\"}]}"));
    check_open(directory, "list 2");
    TEST(template_token_variables(directory, &tokens, &error));
    TEST(slice_is(buffer_view(&tokens), ",\"bos_token\":\"<s>\",\"eos_token\":\"</s>\""));
    TEST(write_text(directory, "tokenizer_config.json", "{\"chat_template\":\"string {{ 3 }}\"}"));
    check_open(directory, "string 3");
    TEST(write_text(directory, "chat_template.jinja", "file {{ 4 }}\n"));
    check_open(directory, "file 4");
    TEST(write_text(directory, "chat_template.jinja", "\n{{ "));
    TEST(
        !template_open(directory, &error) && strstr(error.text, "chat_template.jinja") && strstr(error.text, "line 2"));
    TEST(write_text(directory, "tokenizer_config.json", "{"));
    TEST(!template_token_variables(directory, &tokens, &error) && strstr(error.text, "tokenizer_config.json"));
    static const char *const names[] = {"chat_template.json", "tokenizer_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        unlink(path);
    }
    rmdir(directory);
    buffer_free(&tokens);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "render") == 0) return render_lines(argv[2]);
    test_origins();
    test_messages();
    test_continue();
    test_errors();
    test_left_out();
    test_long_integers();
    test_files();
    test_threads();
    test_bounds();
    test_nesting();
    return test_done();
}
