# filled by the part
