namespace group_$N {
template <int K> struct Step {
    static long apply(std::map<std::string, std::vector<long>> &table, long seed) {
        auto &row = table[std::to_string((seed * 31 + K) % 17)];
        row.push_back(seed ^ K);
        std::sort(row.begin(), row.end(), [](long a, long b) { return (a * 7 + $N) % 101 < (b * 7 + $N) % 101; });
        long sum = std::accumulate(row.begin(), row.end(), 0L, [](long a, long b) { return (a * 3 + b) % 1000003; });
        std::function<long(long)> next = [&row, sum](long x) { return x + sum + static_cast<long>(row.size()); };
        return next(Step<K - 1>::apply(table, sum + K));
    }
};
template <> struct Step<0> {
    static long apply(std::map<std::string, std::vector<long>> &, long seed) { return seed; }
};
} // namespace group_$N
long total_$N(int rounds) {
    std::map<std::string, std::vector<long>> table;
    long sum = $N;
    for (int i = 0; i < rounds; i++) {
        sum = group_$N::Step<6>::apply(table, sum + i) % 1000003;
    }
    return sum;
}
