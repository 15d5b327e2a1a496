/* Sizes of recurrent states and of the memory that their operations work in. */
#include "backend/recurrent.h"

int64_t conv_channels(const Conv *op) {
    int64_t channels = 0;
    for (int i = 0; i < op->part_count; i++) channels += op->part[i].channels;
    return channels;
}
int64_t conv_anchor_width(const Conv *op) { return op->taps > 1 ? (op->taps - 1) * conv_channels(op) : 0; }
int64_t conv_row_width(const Conv *op) { return op->taps > 1 ? conv_channels(op) : 0; }

int64_t recurrence_anchor_width(const Recurrence *op) { return (int64_t)op->value_heads * op->key_dim * op->value_dim; }
int64_t recurrence_row_width(const Recurrence *op) {
    const int64_t decays = op->channel_decay ? (int64_t)op->value_heads * op->key_dim : op->value_heads;
    return decays + (int64_t)op->key_heads * op->key_dim + (int64_t)op->value_heads * op->value_dim;
}
int64_t recurrence_width(const Recurrence *op) {
    const int products = op->kind == RECURRENCE_DELTA ? 2 : 1;
    const int64_t decays = op->channel_decay ? (int64_t)op->value_heads * op->key_dim : 0;
    return (int64_t)op->key_heads * RECURRENT_PAGE_TOKENS * products + decays;
}

int64_t mamba_anchor_width(const Mamba *op) { return op->channels * op->state; }
int64_t mamba_row_width(const Mamba *op) {
    return 2 * op->channels + op->state + op->channels * op->state / MAMBA_SLICE_TOKENS;
}
