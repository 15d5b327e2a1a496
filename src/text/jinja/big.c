/* Integers without Python's absence of limits: up to JINJA_BITS_MAX bits, sign and magnitude in 32-bit limbs.
 * Division is Knuth's algorithm D. */
#include <math.h>
#include <stdlib.h>

#include "text/jinja/value.h"

enum { BIG_LIMBS = JINJA_BITS_MAX / 32, BIG_ROOM = BIG_LIMBS * 2 + 2 };

typedef struct JinjaBig {
    int sign; /* -1 or 1 */
    uint32_t count;
    uint32_t limb[]; /* least significant first, no leading zeros */
} JinjaBig;

/* A number being computed: large enough for the product of two. */
typedef struct Work {
    int sign;
    uint32_t count;
    uint32_t limb[BIG_ROOM];
} Work;

static void work_trim(Work *w) {
    while (w->count && w->limb[w->count - 1] == 0) w->count--;
    if (w->count == 0) w->sign = 1;
}

static void work_from_u64(Work *w, uint64_t value) {
    w->sign = 1;
    w->count = 2;
    w->limb[0] = (uint32_t)value;
    w->limb[1] = (uint32_t)(value >> 32);
    work_trim(w);
}

static void work_from(Work *w, Jv v) {
    if (v.tag == JINJA_BIG) {
        w->sign = v.big->sign;
        w->count = v.big->count;
        memcpy(w->limb, v.big->limb, w->count * sizeof w->limb[0]);
        return;
    }
    int64_t value = jv_small(v);
    work_from_u64(w, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
    if (value < 0) w->sign = -1;
}

static Jv work_value(Vm *vm, const Work *w) {
    if (w->count <= 2) {
        uint64_t magnitude = (w->count > 0 ? w->limb[0] : 0) | (uint64_t)(w->count > 1 ? w->limb[1] : 0) << 32;
        if (w->sign > 0 && magnitude <= INT64_MAX) return jv_int((int64_t)magnitude);
        if (w->sign < 0 && magnitude <= (uint64_t)INT64_MAX + 1) return jv_int((int64_t)(0 - magnitude));
    }
    if (w->count > BIG_LIMBS) return jinja_raise(vm, ERROR_LIMIT, "an integer grows beyond %d bits", JINJA_BITS_MAX);
    JinjaBig *big = jinja_alloc(vm, 1, sizeof *big + w->count * sizeof w->limb[0]);
    if (!big || !jinja_step(vm, w->count)) return jv_error();
    big->sign = w->sign;
    big->count = w->count;
    memcpy(big->limb, w->limb, w->count * sizeof w->limb[0]);
    return (Jv){.tag = JINJA_BIG, .big = big};
}

static int magnitude_compare(const Work *a, const Work *b) {
    if (a->count != b->count) return a->count < b->count ? -1 : 1;
    for (uint32_t i = a->count; i-- > 0;) {
        if (a->limb[i] != b->limb[i]) return a->limb[i] < b->limb[i] ? -1 : 1;
    }
    return 0;
}

static void magnitude_add(Work *out, const Work *a, const Work *b) {
    uint64_t carry = 0;
    uint32_t count = a->count > b->count ? a->count : b->count;
    for (uint32_t i = 0; i < count; i++) {
        carry += (uint64_t)(i < a->count ? a->limb[i] : 0) + (i < b->count ? b->limb[i] : 0);
        out->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    out->limb[count] = (uint32_t)carry;
    out->count = count + 1;
}

static void magnitude_sub(Work *out, const Work *a, const Work *b) { /* a ≥ b */
    int64_t borrow = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        int64_t digit = (int64_t)a->limb[i] - (i < b->count ? b->limb[i] : 0) + borrow;
        out->limb[i] = (uint32_t)digit;
        borrow = digit < 0 ? -1 : 0;
    }
    out->count = a->count;
}

static void work_add(Work *out, const Work *a, const Work *b) {
    if (a->sign == b->sign) {
        magnitude_add(out, a, b);
        out->sign = a->sign;
    } else if (magnitude_compare(a, b) >= 0) {
        magnitude_sub(out, a, b);
        out->sign = a->sign;
    } else {
        magnitude_sub(out, b, a);
        out->sign = b->sign;
    }
    work_trim(out);
}

static uint32_t work_small_divide(Work *w, uint32_t divisor) {
    uint64_t rest = 0;
    for (uint32_t i = w->count; i-- > 0;) {
        rest = rest << 32 | w->limb[i];
        w->limb[i] = (uint32_t)(rest / divisor);
        rest %= divisor;
    }
    work_trim(w);
    return (uint32_t)rest;
}

static void work_shift_left(Work *w, uint32_t bits) {
    uint32_t limbs = bits / 32, rest = bits % 32;
    if (w->count == 0) return;
    w->limb[w->count] = 0;
    for (uint32_t i = w->count + 1; i-- > 0;) {
        uint64_t value = (uint64_t)w->limb[i] << rest;
        if (rest && i > 0) value |= w->limb[i - 1] >> (32 - rest);
        w->limb[i + limbs] = (uint32_t)value;
    }
    memset(w->limb, 0, limbs * sizeof w->limb[0]);
    w->count += limbs + 1;
    work_trim(w);
}

/* Magnitudes: quotient and remainder of a by b ≠ 0. remainder may not be a or b. */
static void magnitude_divide(const Work *a, const Work *b, Work *quotient, Work *remainder) {
    quotient->sign = remainder->sign = 1;
    if (magnitude_compare(a, b) < 0) {
        quotient->count = 0;
        remainder->count = a->count;
        memcpy(remainder->limb, a->limb, a->count * sizeof a->limb[0]);
        return;
    }
    if (b->count == 1) {
        quotient->count = a->count;
        memcpy(quotient->limb, a->limb, a->count * sizeof a->limb[0]);
        work_from_u64(remainder, work_small_divide(quotient, b->limb[0]));
        return;
    }
    uint32_t shift = (uint32_t)__builtin_clz(b->limb[b->count - 1]);
    Work divisor = *b;
    *remainder = *a;
    remainder->sign = divisor.sign = 1;
    work_shift_left(&divisor, shift);
    work_shift_left(remainder, shift);
    uint32_t n = divisor.count, m = a->count - n;
    if (remainder->count == a->count) remainder->limb[a->count] = 0;
    uint32_t *u = remainder->limb;
    for (uint32_t j = m + 1; j-- > 0;) {
        uint64_t top = (uint64_t)u[j + n] << 32 | u[j + n - 1];
        uint64_t guess = top / divisor.limb[n - 1], rest = top % divisor.limb[n - 1];
        while (guess >> 32 || guess * divisor.limb[n - 2] > (rest << 32 | u[j + n - 2])) {
            guess--;
            rest += divisor.limb[n - 1];
            if (rest >> 32) break;
        }
        int64_t borrow = 0;
        uint64_t carry = 0;
        for (uint32_t i = 0; i < n; i++) {
            carry += guess * divisor.limb[i];
            int64_t digit = (int64_t)u[i + j] - (int64_t)(uint32_t)carry + borrow;
            u[i + j] = (uint32_t)digit;
            borrow = digit >> 32;
            carry >>= 32;
        }
        int64_t digit = (int64_t)u[j + n] - (int64_t)carry + borrow;
        u[j + n] = (uint32_t)digit;
        if (digit < 0) {
            guess--;
            carry = 0;
            for (uint32_t i = 0; i < n; i++) {
                carry += (uint64_t)u[i + j] + divisor.limb[i];
                u[i + j] = (uint32_t)carry;
                carry >>= 32;
            }
            u[j + n] += (uint32_t)carry;
        }
        quotient->limb[j] = (uint32_t)guess;
    }
    quotient->count = m + 1;
    work_trim(quotient);
    remainder->count = n;
    for (uint32_t i = 0; shift && i < n; i++) {
        u[i] = u[i] >> shift | (i + 1 < n ? u[i + 1] << (32 - shift) : 0);
    }
    work_trim(remainder);
}

Jv jinja_int_add(Vm *vm, Jv a, Jv b) {
    int64_t sum;
    if (a.tag != JINJA_BIG && b.tag != JINJA_BIG && !__builtin_add_overflow(jv_small(a), jv_small(b), &sum)) {
        return jv_int(sum);
    }
    Work x, y, out;
    work_from(&x, a);
    work_from(&y, b);
    work_add(&out, &x, &y);
    return work_value(vm, &out);
}

Jv jinja_int_sub(Vm *vm, Jv a, Jv b) {
    int64_t difference;
    if (a.tag != JINJA_BIG && b.tag != JINJA_BIG && !__builtin_sub_overflow(jv_small(a), jv_small(b), &difference)) {
        return jv_int(difference);
    }
    Work x, y, out;
    work_from(&x, a);
    work_from(&y, b);
    if (y.count) y.sign = -y.sign;
    work_add(&out, &x, &y);
    return work_value(vm, &out);
}

Jv jinja_int_negate(Vm *vm, Jv a) { return jinja_int_sub(vm, jv_int(0), a); }

Jv jinja_int_mul(Vm *vm, Jv a, Jv b) {
    int64_t product;
    if (a.tag != JINJA_BIG && b.tag != JINJA_BIG && !__builtin_mul_overflow(jv_small(a), jv_small(b), &product)) {
        return jv_int(product);
    }
    Work x, y, out;
    work_from(&x, a);
    work_from(&y, b);
    if (!jinja_step(vm, (size_t)x.count * y.count / 8)) return jv_error();
    out.sign = x.sign * y.sign;
    out.count = x.count + y.count;
    memset(out.limb, 0, out.count * sizeof out.limb[0]);
    for (uint32_t i = 0; i < x.count; i++) {
        uint64_t carry = 0;
        for (uint32_t j = 0; j < y.count; j++) {
            carry += (uint64_t)x.limb[i] * y.limb[j] + out.limb[i + j];
            out.limb[i + j] = (uint32_t)carry;
            carry >>= 32;
        }
        out.limb[i + y.count] = (uint32_t)carry;
    }
    work_trim(&out);
    return work_value(vm, &out);
}

bool jinja_int_divmod(Vm *vm, Jv a, Jv b, Jv *quotient, Jv *remainder) {
    if (jinja_int_sign(b) == 0) {
        jinja_fail(vm, "ZeroDivisionError: integer division or modulo by zero");
        return false;
    }
    if (a.tag != JINJA_BIG && b.tag != JINJA_BIG && !(jv_small(a) == INT64_MIN && jv_small(b) == -1)) {
        int64_t x = jv_small(a), y = jv_small(b), q = x / y, r = x % y;
        if (r && (r < 0) != (y < 0)) {
            q--;
            r += y;
        }
        *quotient = jv_int(q);
        *remainder = jv_int(r);
        return true;
    }
    Work x, y, q, r;
    work_from(&x, a);
    work_from(&y, b);
    if (!jinja_step(vm, (size_t)x.count * y.count / 8)) return false;
    magnitude_divide(&x, &y, &q, &r);
    q.sign = x.sign * y.sign;
    r.sign = x.sign;
    work_trim(&q);
    work_trim(&r);
    *quotient = work_value(vm, &q);
    *remainder = work_value(vm, &r);
    if (r.count && x.sign != y.sign && !vm->failed) { /* truncated → floor */
        *quotient = jinja_int_sub(vm, *quotient, jv_int(1));
        *remainder = jinja_int_add(vm, *remainder, b);
    }
    return !vm->failed;
}

Jv jinja_int_power(Vm *vm, Jv a, uint64_t exponent) {
    Jv result = jv_int(1);
    bool tiny = a.tag != JINJA_BIG && jv_small(a) >= -1 && jv_small(a) <= 1;
    if (tiny && exponent > 2) exponent = 2 + exponent % 2;
    while (exponent && !jv_bad(result) && !jv_bad(a)) {
        if (exponent & 1) result = jinja_int_mul(vm, result, a);
        exponent >>= 1;
        if (exponent) a = jinja_int_mul(vm, a, a);
    }
    return jv_bad(a) ? a : result;
}

int jinja_int_sign(Jv a) {
    if (a.tag == JINJA_BIG) return a.big->sign;
    int64_t value = jv_small(a);
    return value < 0 ? -1 : value > 0;
}

int jinja_int_compare(Jv a, Jv b) {
    if (a.tag != JINJA_BIG && b.tag != JINJA_BIG) {
        return jv_small(a) < jv_small(b) ? -1 : jv_small(a) > jv_small(b);
    }
    Work x, y;
    work_from(&x, a);
    work_from(&y, b);
    if (x.sign != y.sign) return x.sign;
    return x.sign * magnitude_compare(&x, &y);
}

int jinja_int_bits(Jv a) {
    Work x;
    work_from(&x, a);
    return x.count ? (int)(x.count * 32) - __builtin_clz(x.limb[x.count - 1]) : 0;
}

static int magnitude_bits(const Work *w) {
    return w->count ? (int)(w->count * 32) - __builtin_clz(w->limb[w->count - 1]) : 0;
}

/* The magnitude as a double, half to even; sticky: there is more below the last bit. */
static double magnitude_double(const Work *w, bool sticky, int exponent) {
    int bits = magnitude_bits(w), drop = bits - 64;
    uint64_t top = 0;
    for (int i = 0; i < 64 && i < bits; i++) {
        int bit = (drop > 0 ? drop : 0) + i;
        top |= (uint64_t)(w->limb[bit / 32] >> (bit % 32) & 1) << i;
    }
    for (int i = 0; i < drop && !sticky; i++) sticky = w->limb[i / 32] >> (i % 32) & 1;
    if (drop < 0) drop = 0;
    int used = bits < 64 ? bits : 64, cut = used - 53;
    if (cut > 0) {
        uint64_t rest = top & (((uint64_t)1 << cut) - 1), half = (uint64_t)1 << (cut - 1);
        top >>= cut;
        if (rest > half || (rest == half && (sticky || (top & 1)))) top++;
        drop += cut;
    }
    return ldexp((double)top, drop + exponent);
}

double jinja_int_double(Jv a) {
    if (a.tag != JINJA_BIG) return (double)jv_small(a);
    Work x;
    work_from(&x, a);
    return x.sign * magnitude_double(&x, false, 0);
}

Jv jinja_int_divide(Vm *vm, Jv a, Jv b) {
    if (jinja_int_sign(b) == 0) return jinja_fail(vm, "ZeroDivisionError: division by zero");
    const int64_t exact = (int64_t)1 << 53;
    if (a.tag != JINJA_BIG && b.tag != JINJA_BIG && jv_small(a) <= exact && jv_small(a) >= -exact &&
        jv_small(b) <= exact && jv_small(b) >= -exact) {
        return jv_float((double)jv_small(a) / (double)jv_small(b));
    }
    Work x, y, q, r;
    work_from(&x, a);
    work_from(&y, b);
    int shift = 66 + magnitude_bits(&y) - magnitude_bits(&x);
    if (shift < 0) shift = 0;
    int sign = x.sign * y.sign;
    work_shift_left(&x, (uint32_t)shift); /* at most 66 bits more than either: fits the room */
    magnitude_divide(&x, &y, &q, &r);
    double result = sign * magnitude_double(&q, r.count > 0, -shift);
    if (isinf(result)) return jinja_fail(vm, "OverflowError: integer division result too large for a float");
    return jv_float(result);
}

Jv jinja_int_from_double(Vm *vm, double value) {
    if (fabs(value) < 9e18) return jv_int((int64_t)value);
    int exponent;
    double fraction = frexp(fabs(value), &exponent);
    Work w;
    work_from_u64(&w, (uint64_t)ldexp(fraction, 53));
    work_shift_left(&w, (uint32_t)(exponent - 53));
    w.sign = value < 0 ? -1 : 1;
    return work_value(vm, &w);
}

Jv jinja_int_parse(Vm *vm, const char *digits, size_t count, int base) {
    Work w = {.sign = 1, .count = 0};
    for (size_t i = 0; i < count; i++) {
        char c = digits[i];
        uint64_t carry = (uint64_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
        for (uint32_t j = 0; j < w.count; j++) {
            carry += (uint64_t)w.limb[j] * (uint32_t)base;
            w.limb[j] = (uint32_t)carry;
            carry >>= 32;
        }
        if (carry) w.limb[w.count++] = (uint32_t)carry;
        if (w.count > BIG_LIMBS || !jinja_step(vm, w.count / 16)) break;
    }
    return work_value(vm, &w);
}

bool jinja_int_digits(Vm *vm, Jv a, int base, Buffer *out) {
    char digits[JINJA_BITS_MAX + 2];
    size_t at = sizeof digits;
    Work w;
    work_from(&w, a);
    int sign = w.sign;
    do {
        uint32_t digit = work_small_divide(&w, (uint32_t)base);
        digits[--at] = (char)(digit < 10 ? '0' + digit : 'a' + digit - 10);
        if (!jinja_step(vm, w.count / 16)) return false;
    } while (w.count);
    if (sign < 0) digits[--at] = '-';
    buffer_append(out, digits + at, sizeof digits - at);
    return true;
}
