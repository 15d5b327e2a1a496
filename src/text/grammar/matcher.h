/* The parser: a state is the set of all ways to have read a text so far, each a lexeme that remains to be read and a
 * stack of what comes behind it. Stacks share their tails, and equal stacks, sets and transitions are stored once, so
 * that a state is a number that never changes its meaning. Ambiguity costs items, not time without end. Internal to
 * text/grammar. */
#pragma once
#include "text/grammar/rules.h"

typedef uint32_t Stack; /* 0: nothing comes behind */
typedef uint32_t State;
enum { STATE_DEAD }; /* nothing may follow, and the text may not end */

typedef struct StackNode {
    Expr expr;      /* what comes next */
    uint32_t count; /* sequence: completed children; repeat: completed repetitions */
    Stack below;
    State closure; /* what may be read from here: STATE_DEAD until it is computed */
    uint32_t next; /* in its bucket */
    uint32_t seen; /* by the closure in progress */
} StackNode;

typedef struct Item {
    Lex lex;
    Stack stack; /* behind the lexeme */
} Item;

typedef struct StateNode {
    uint32_t first, count; /* items, sorted */
    bool ends;             /* the text may end here */
    bool heads_known;
    uint32_t next; /* in its bucket */
    ByteSet heads; /* matcher_may_follow */
} StateNode;

typedef struct Move { /* key: state · 256 + byte + 1, or an item with the highest bit set; 0: a free place */
    uint64_t key;
    State to;
} Move;

typedef struct Matcher {
    Budget *budget;
    Lexicon *lexicon;
    Rules *rules;
    StackNode *stacks;
    uint32_t stack_count, stack_capacity, stack_bucket_count, *stack_buckets;
    StateNode *states;
    uint32_t hidden_row_count, state_capacity, state_bucket_count, *state_buckets;
    Item *items;
    uint32_t item_count, item_capacity;
    Move *moves; /* a cache: emptied when it is full */
    uint32_t move_count, move_capacity;
    Item *found; /* scratch */
    uint32_t found_count, found_capacity;
    Stack *pending; /* scratch */
    uint32_t pending_count, pending_capacity;
    uint32_t seen;
    State start;
} Matcher;

NODISCARD bool matcher_open(Matcher *m, Rules *rules, Rule root);
void matcher_close(Matcher *m);
/* Behind one more byte; STATE_DEAD: it may not follow, or the budget failed. */
State matcher_step(Matcher *m, State state, uint8_t byte);
/* The state of one item and what may be read behind it when its lexeme may be over. */
State matcher_state_of(Matcher *m, Item item);
State matcher_state_of_items(Matcher *m, const Item *items, uint32_t count, bool ends);
static inline const Item *matcher_items(const Matcher *m, State state, uint32_t *count) {
    *count = m->states[state].count;
    return m->items + m->states[state].first;
}
/* Cheaper than a step, where most bytes may not. */
void matcher_find_heads(Matcher *m, State state);
static inline bool matcher_may_follow(Matcher *m, State state, uint8_t byte) {
    if (!m->states[state].heads_known) matcher_find_heads(m, state);
    return byteset_has(&m->states[state].heads, byte);
}
/* The one byte that may follow, or −1 when there are more, or none, or the text may end. */
int matcher_only_byte(Matcher *m, State state);
