"""Reads state from outside of its query: any checkpoint as a DataFrame, and a running query by key."""
