/* Map: many keys, equal prefixes, every slot of a small table in one chain, odd keys. */
#include "base/map.h"

#include "test.h"

enum { KEYS = 20000 };

static char text[KEYS][12];

static void test_many(void) {
    Map map = {0};
    TEST(!map_get(&map, SLICE("a"), NULL));
    for (int i = 0; i < KEYS; i++) {
        snprintf(text[i], sizeof text[i], "key%d", i);
        TEST(map_put(&map, slice_of(text[i]), (uint64_t)i * 3));
    }
    TEST(map.count == KEYS);
    bool right = true;
    for (int i = 0; i < KEYS; i++) {
        uint64_t value;
        right = right && map_get(&map, slice_of(text[i]), &value) && value == (uint64_t)i * 3;
    }
    TEST(right);
    TEST(!map_get(&map, SLICE("key20000"), NULL) && !map_get(&map, SLICE("key"), NULL));
    TEST(map_put(&map, SLICE("key7"), 1) && map.count == KEYS);
    uint64_t value = 0;
    TEST(map_get(&map, SLICE("key7"), &value) && value == 1);
    map_free(&map);
    TEST(map.capacity == 0);
}

static void test_odd_keys(void) {
    Map map = {0};
    uint64_t value;
    TEST(map_put(&map, (Slice){NULL, 0}, 5));
    TEST(map_get(&map, SLICE(""), &value) && value == 5);
    TEST(map_put(&map, (Slice){"a\0b", 3}, 6) && map_put(&map, (Slice){"a\0c", 3}, 7) && map_put(&map, SLICE("a"), 8));
    TEST(map_get(&map, (Slice){"a\0b", 3}, &value) && value == 6);
    TEST(map_get(&map, (Slice){"a\0c", 3}, &value) && value == 7);
    TEST(map_get(&map, SLICE("a"), &value) && value == 8);
    map_free(&map);
}

/* Keys whose hashes agree in the bits that choose the slot share one chain; found by search, for the hash is seeded. */
static void test_collisions(void) {
    Map map = {0};
    TEST(map_reserve(&map, 40));
    size_t capacity = map.capacity, mask = capacity - 1;
    int chain[40], count = 0;
    for (int i = 0; i < KEYS && count < 40; i++) {
        if ((hash_bytes(text[i], strlen(text[i])) & mask) == mask) chain[count++] = i; /* wraps around the end */
    }
    TEST_MSG(count == 40, "%d", count); /* 20000 keys over 64 slots: about 312 each */
    for (int i = 0; i < count; i++) TEST(map_put(&map, slice_of(text[chain[i]]), (uint64_t)i));
    TEST(map.capacity == capacity);
    for (int i = 0; i < count; i++) {
        uint64_t value;
        TEST(map_get(&map, slice_of(text[chain[i]]), &value) && value == (uint64_t)i);
    }
    map_free(&map);
}

static void test_reserve(void) {
    Map map = {0};
    TEST(map_reserve(&map, 1000));
    size_t capacity = map.capacity;
    for (int i = 0; i < 1000; i++) TEST(map_put(&map, slice_of(text[i]), 0));
    TEST(map.capacity == capacity);
    TEST(!map_reserve(&map, SIZE_MAX) && map.count == 1000 && map_get(&map, SLICE("key5"), NULL));
    map_free(&map);
}

static void test_hash(void) {
    TEST(hash_bytes("abc", 3) == hash_bytes("abcd", 3));
    TEST(hash_bytes("abc", 3) != hash_bytes("abc\0", 4));
    TEST(hash_bytes("", 0) != hash_bytes("\0", 1));
    uint64_t all = 0, none = ~0ull;
    for (int i = 0; i < 200; i++) {
        uint64_t hash = hash_bytes(text[i], strlen(text[i]));
        all |= hash;
        none &= hash;
    }
    TEST(all == ~0ull && none == 0); /* every bit takes both values: misses with probability 2^-193 */
}

int main(void) {
    test_many();
    test_odd_keys();
    test_collisions();
    test_reserve();
    test_hash();
    return test_done();
}
