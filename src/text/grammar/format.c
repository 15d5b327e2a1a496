/* Formats. */
#include "text/grammar/format.h"

/* RFC 3339, with the days that there are; February 29 in leap years (Gregorian). */
#define YEAR "(?:0{3}[1-9]|0{2}[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})"
#define LEAP "(?:(?:\\d\\d(?:0[48]|[2468][048]|[13579][26]))|(?:(?:0[48]|[2468][048]|[13579][26])00))"
#define DAYS                                                                                                           \
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))"
#define DATE "(?:" YEAR "-" DAYS "|" LEAP "-02-29)"
#define CLOCK "(?:[01]\\d|2[0-3]):[0-5]\\d"
#define TIME CLOCK ":[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" CLOCK ")"
/* ISO 8601 as appendix A of RFC 3339 has it. */
#define DURATION_TIME "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define DURATION_DATE "(?:\\d+D|\\d+M(?:\\d+D)?|\\d+Y(?:\\d+M(?:\\d+D)?)?)"
#define DURATION "P(?:" DURATION_DATE "(?:" DURATION_TIME ")?|" DURATION_TIME "|\\d+W)"
/* At most four labels of at most 62 letters: fewer than the 253 that a name may have. */
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){0,3}"
/* Without the limits of lengths, which no validator minds: their counts would make as many states. */
#define MAILBOX "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
#define MAIL_HOST "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
/* RFC 3986, appendix A. */
#define IPV6                                                                                                           \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16            \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16      \
    ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16   \
    "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define NO_COLON "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
#define AUTHORITY                                                                                                      \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(?:\\[" IPV6                                                \
    "\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::\\d{0,5})?"
#define TAIL "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define URI_PATH "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR "*)*|)"
#define RELATIVE_PATH                                                                                                  \
    "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" NO_COLON "+(?:/" PCHAR "*)*|)"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:" URI_PATH TAIL
#define POINTER "(?:/(?:[^~/]|~[01])*)*"

FormatKind format_pattern(Slice name, const char **pattern) {
    static const struct {
        const char *name, *pattern; /* NULL: refused */
    } formats[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"duration", "^" DURATION "$"},
        {"email", "^" MAILBOX "@" MAIL_HOST "$"},
        {"idn-email", "^" MAILBOX "@" MAIL_HOST "$"},
        {"hostname", "^" HOST "$"},
        {"idn-hostname", "^" HOST "$"},
        {"ipv4", "^" IPV4 "$"},
        {"ipv6", "^" IPV6 "$"},
        {"uuid", "^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"},
        {"uri", "^" URI "$"},
        {"iri", "^" URI "$"},
        {"uri-reference", "^(?:" URI "|" RELATIVE_PATH TAIL ")$"},
        {"iri-reference", "^(?:" URI "|" RELATIVE_PATH TAIL ")$"},
        {"json-pointer", "^" POINTER "$"},
        {"relative-json-pointer", "^(?:0|[1-9]\\d*)(?:#|" POINTER ")$"},
        {"uri-template", NULL},
        {"regex", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        if (!slice_is(name, formats[i].name)) continue;
        *pattern = formats[i].pattern;
        return *pattern ? FORMAT_KNOWN : FORMAT_REFUSED;
    }
    return FORMAT_UNKNOWN;
}
