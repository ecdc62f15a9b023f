"""Principals, sessions, logins and access rules. [P]"""
