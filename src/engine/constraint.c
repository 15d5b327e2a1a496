#include "engine/constraint.h"

void constraint_init(Constraint *constraint, const ConstraintOps *ops, ConstraintState start, size_t mask_words) {
    *constraint = (Constraint){.ops = ops, .start = start, .mask_words = mask_words};
    atomic_init(&constraint->references, 1);
}

Constraint *constraint_retain(Constraint *constraint) {
    if (constraint) atomic_fetch_add(&constraint->references, 1);
    return constraint;
}

void constraint_release(Constraint *constraint) {
    if (constraint && atomic_fetch_sub(&constraint->references, 1) == 1) constraint->ops->free(constraint);
}
