/* The parser. A state is the set of all parses of the text so far; each item is the rest of a lexeme and a stack of
 * expressions that follow it. Stacks share tails, and equal stacks, sets and transitions are stored once, so a state is
 * a number with a fixed meaning. Ambiguity costs items, which are limited. Internal to text/grammar. */
#pragma once
#include "text/grammar/rules.h"

typedef uint32_t Stack; /* 0: empty */
typedef uint32_t State;
enum { STATE_DEAD }; /* no byte may follow, and the text may not end */

typedef struct StackNode {
    Expr expr;      /* next expression */
    uint32_t count; /* sequence: completed children; repeat: completed repetitions */
    Stack below;
    State closure; /* items readable from here; STATE_DEAD until computed */
    uint32_t next; /* in its hash bucket */
    uint32_t seen; /* mark of the current closure */
} StackNode;

typedef struct Item {
    Lex lex;
    Stack stack; /* after the lexeme */
} Item;

typedef struct StateNode {
    uint32_t first, count; /* items, sorted */
    bool ends;             /* the text may end here */
    bool heads_known;
    uint32_t next; /* in its hash bucket */
    ByteSet heads; /* matcher_may_follow */
} StateNode;

typedef struct Move { /* key: state · 256 + byte + 1, or an item with the highest bit set; 0: a free slot */
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
    uint32_t state_count, state_capacity, state_bucket_count, *state_buckets;
    Item *items;
    uint32_t item_count, item_capacity;
    Move *moves; /* cache, cleared when full */
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
/* The state after one more byte; STATE_DEAD: the byte may not follow, or the budget failed. */
State matcher_step(Matcher *m, State state, uint8_t byte);
/* The state of one item, with the items after it where its lexeme may end. */
State matcher_state_of(Matcher *m, Item item);
State matcher_state_of_items(Matcher *m, const Item *items, uint32_t count, bool ends);
static inline const Item *matcher_items(const Matcher *m, State state, uint32_t *count) {
    *count = m->states[state].count;
    return m->items + m->states[state].first;
}
/* Sets the state's possible next bytes: cheaper than a step where few bytes may follow. */
void matcher_find_heads(Matcher *m, State state);
static inline bool matcher_may_follow(Matcher *m, State state, uint8_t byte) {
    if (!m->states[state].heads_known) matcher_find_heads(m, state);
    return byteset_has(&m->states[state].heads, byte);
}
/* The only byte that may follow; −1: none, several, or the text may end. */
int matcher_only_byte(Matcher *m, State state);
