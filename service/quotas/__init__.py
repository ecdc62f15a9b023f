"""Client quotas: rates over windows, and who shares them. [P]"""
