"""Comparison with other brokers at equal depth, connections and durability: script/bench peers."""
