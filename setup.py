"""Builds the per-record kernel with Cython where a C compiler is; says so and goes on where none is."""
from setuptools import setup

setup()
