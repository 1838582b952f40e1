// Types, and the words of exact.random_words: in front of every source with keyed words.
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;

// exact.random_words at one place.
__device__ u64 random_word(u64 key, u64 place) {
    u64 z = (place + 1) * 0x9E3779B97F4A7C15ULL + key;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}
