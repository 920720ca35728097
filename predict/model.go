package predict

import (
	"encoding"
	"math"
	"slices"
)

const modelKind = "EPBM"

var (
	_ encoding.BinaryMarshaler   = (*Model)(nil)
	_ encoding.BinaryAppender    = (*Model)(nil)
	_ encoding.BinaryUnmarshaler = (*Model)(nil)
)

// AppendBinary appends the saved form of the model. Equal models have equal bytes. The error is always nil.
func (m *Model) AppendBinary(dst []byte) ([]byte, error) {
	var e encoder
	c := &m.config
	e.int(c.Features)
	e.int(c.Trees)
	e.float(c.LearningRate)
	e.float(c.Shrinkage)
	e.bool(c.RealTarget)
	e.int(len(c.Prior))
	for _, f := range c.Prior {
		e.uint8(uint8(f))
	}
	e.int(m.rows)
	e.int(m.skipped)
	e.float(m.base)
	e.float(m.prior.floor)
	e.floats(m.prior.weights)
	e.floats(m.gained)
	for i := range m.quantisers {
		q := &m.quantisers[i]
		e.float(q.low)
		e.uint64(uint64(q.base))
		e.uint8(q.shift)
		e.uint8(uint8(len(q.cuts)))
		for _, cut := range q.cuts {
			e.uint8(uint8(cut))
			e.uint8(uint8(cut >> 8))
		}
	}
	e.int(len(m.trees))
	for i := range m.trees {
		t := &m.trees[i]
		for l := range treeDepth {
			e.uint8(t.feature[l])
			e.uint8(uint8(t.threshold[l]))
		}
		for _, v := range t.leaf {
			e.float32(v)
		}
	}
	return seal(dst, modelKind, e.b), nil
}

// MarshalBinary returns the saved form of the model.
func (m *Model) MarshalBinary() ([]byte, error) { return m.AppendBinary(nil) }

// UnmarshalBinary replaces the model by a saved one. Damaged bytes are ErrFormat, those of another version ErrVersion,
// and leave the model as it was. It is the one method that must not run beside others.
func (m *Model) UnmarshalBinary(b []byte) error {
	content, rest, err := unseal(b, modelKind)
	if err != nil {
		return err
	}
	d := decoder{b: content}
	var n Model
	c := &n.config
	c.Features = d.int("features", 1, maxFeatures)
	c.Trees = d.int("trees", 1, maxTrees)
	c.LearningRate = d.number("learning rate")
	c.Shrinkage = d.number("shrinkage")
	c.RealTarget = d.bool()
	for range d.int("prior columns", 0, maxFeatures) {
		c.Prior = append(c.Prior, int(d.uint8()))
	}
	n.rows = d.int("rows", 0, math.MaxInt32)
	n.skipped = d.int("skipped rows", 0, math.MaxInt32)
	n.base = d.number("base")
	n.prior.columns = c.Prior
	n.prior.floor = d.number("prior floor")
	n.prior.weights = d.floats("prior weights")
	n.gained = d.floats("importances")
	n.quantisers = make([]quantiser, c.Features)
	for i := range n.quantisers {
		n.quantisers[i].decode(&d)
	}
	n.trees = make([]tree, d.count("trees", treeBytes))
	for i := range n.trees {
		n.trees[i].decode(&d, c.Features)
	}
	if err := d.end(); err != nil {
		return err
	}
	if err := c.validate(); err != nil {
		d.fail("%v", err)
	}
	if len(n.trees) > maxTrees || len(n.gained) != c.Features ||
		n.prior.floor < 0 || (n.prior.floor > 0) != (len(c.Prior) > 0) ||
		len(n.prior.weights) != 0 && len(n.prior.weights) != len(c.Prior)+1 ||
		n.prior.floor > 0 && len(n.prior.weights) == 0 || len(rest) > 0 {
		d.fail("parts do not match")
	}
	if d.err != nil {
		return d.err
	}
	n.findUsed()
	*m = n
	return nil
}

const treeBytes = 2*treeDepth + 4*treeLeafs

func (q *quantiser) decode(d *decoder) {
	q.low = d.number("lowest value")
	q.base = int64(d.uint64())
	q.shift = d.uint8()
	if q.shift > 52 || q.base < 0 || q.base > (2047<<52)>>q.shift-cellCount {
		d.fail("cells from %d with %d bits", q.base, q.shift)
		return
	}
	var cuts []uint16
	for range d.uint8() {
		cuts = append(cuts, uint16(d.uint8())|uint16(d.uint8())<<8)
	}
	ascend := !slices.ContainsFunc(cuts, func(c uint16) bool { return c < 1 || c >= cellCount })
	for i := 1; i < len(cuts); i++ {
		ascend = ascend && cuts[i-1] < cuts[i]
	}
	if len(cuts) > maxBins-2 || !ascend {
		d.fail("cuts are out of order")
		return
	}
	q.setCuts(cuts)
}

func (t *tree) decode(d *decoder, features int) {
	for l := range treeDepth {
		t.feature[l] = d.uint8()
		b := d.uint8()
		if int(t.feature[l]) >= features || b == 0 || b > maxBins {
			d.fail("test of feature %d at bin %d", t.feature[l], b)
			return
		}
		t.threshold[l] = uint64(b) * lowBits
	}
	for i := range t.leaf {
		v := d.float32()
		if v != v || v > math.MaxFloat32 || v < -math.MaxFloat32 {
			d.fail("leaf is %v", v)
			return
		}
		t.leaf[i] = v
	}
}

// Importance returns the share of each feature in what the trees have explained. The shares add up to 1, or are all 0
// if no tree found anything to explain.
func (m *Model) Importance() []float64 {
	total := 0.0
	for _, g := range m.gained {
		total += g
	}
	shares := make([]float64, len(m.gained))
	if total > 0 {
		for i, g := range m.gained {
			shares[i] = g / total
		}
	}
	return shares
}

// Rows returns how many rows the model was fitted to.
func (m *Model) Rows() int { return m.rows }

// Skipped returns how many rows were unusable.
func (m *Model) Skipped() int { return m.skipped }

// Trees returns how many trees the model has: none if there were too few rows for any.
func (m *Model) Trees() int { return len(m.trees) }

// Features returns the number of values in a row.
func (m *Model) Features() int { return m.config.Features }
