"""Shares of users and clients: averages over windows, entities and their limits, buckets. [P]"""
