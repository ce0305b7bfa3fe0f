"""Judging policies before they touch a server: one model of cost and acceptance, simulation and replay."""
