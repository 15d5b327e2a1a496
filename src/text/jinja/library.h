/* Names available to templates: filters, tests, methods and globals of jinja2, and additions of transformers. */
#pragma once
#include "text/jinja/run.h"

extern const JinjaTable jinja_filters; /* filters.c */
extern const JinjaTable jinja_tests;   /* tests.c */
extern const JinjaTable jinja_methods; /* methods.c: of str, list and dict */
extern const JinjaTable jinja_globals; /* globals.c */
