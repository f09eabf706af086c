package kartosql;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.Inflater;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.InterpretedPredicate;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.binaryfile.BinaryFileFormat;
import org.apache.spark.sql.execution.datasources.binaryfile.BinaryFileFormat$;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * The files of a scan, with the values of the partition columns that each has.
 *
 * Spark reads them as it reads the files of its own partitioned tables, but nothing is listed, and no value is taken
 * from a path. Compiled in the driver when it is first needed (session.py); executors never see it.
 */
public final class ListedFiles implements FileIndex {
  private final Path root;
  private final StructType schema;
  private final byte[][] paths;
  private final long[] lengths;
  private final FileStatus[] files;
  private final InternalRow[] values;
  private long size = 0;

  /** Columns follow each other in data: paths, sizes, then those of the schema; see listing.py. */
  private ListedFiles(String root, StructType schema, int count, ByteBuffer buffer) throws Exception {
    this.root = new Path(root);
    this.schema = schema;
    this.files = new FileStatus[count];
    this.values = new InternalRow[count];
    this.lengths = new long[count];
    this.paths = texts(buffer, count);
    for (int i = 0; i < count; i++) {
      this.lengths[i] = buffer.getLong();
      this.size += this.lengths[i];
    }
    Object[][] rows = new Object[count][schema.length()];
    for (int c = 0; c < schema.length(); c++) {
      DataType type = schema.fields()[c].dataType();
      boolean isDecimal = type instanceof org.apache.spark.sql.types.DecimalType;
      byte[] given = new byte[count];
      buffer.get(given);
      if (type instanceof StringType || type instanceof BinaryType || isDecimal) {
        byte[][] found = texts(buffer, count);
        for (int i = 0; i < count; i++) {
          if (type instanceof BinaryType) rows[i][c] = found[i];
          else if (isDecimal) rows[i][c] = Decimal.apply(new java.math.BigDecimal(new String(found[i], UTF_8)), 20, 0);
          else rows[i][c] = UTF8String.fromBytes(found[i]);
        }
      } else {
        for (int i = 0; i < count; i++) {
          long value = buffer.getLong();
          if (type instanceof BooleanType) rows[i][c] = Boolean.valueOf(value != 0L);
          else if (type instanceof IntegerType || type instanceof DateType) rows[i][c] = Integer.valueOf((int) value);
          else if (type instanceof DoubleType) rows[i][c] = Double.valueOf(Double.longBitsToDouble(value));
          else rows[i][c] = Long.valueOf(value);
        }
      }
      for (int i = 0; i < count; i++) if (given[i] == 0) rows[i][c] = null;
    }
    for (int i = 0; i < count; i++) this.values[i] = new GenericInternalRow(rows[i]);
  }

  /** Paths take long to parse: this is done for the files that are read. */
  private FileStatus file(int i) {
    if (this.files[i] == null) {
      Path path = new Path(new String(this.paths[i], UTF_8));
      this.files[i] = new FileStatus(this.lengths[i], false, 1, this.lengths[i], 0L, path);
    }
    return this.files[i];
  }

  private static byte[][] texts(ByteBuffer buffer, int count) {
    int[] lengths = new int[count];
    for (int i = 0; i < count; i++) lengths[i] = (int) buffer.getLong();
    byte[][] found = new byte[count][];
    for (int i = 0; i < count; i++) {
      found[i] = new byte[lengths[i]];
      buffer.get(found[i]);
    }
    return found;
  }

  /** The files whose values fulfil all filters; Spark does not evaluate these again. */
  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    List predicates = new ArrayList();
    for (Iterator filters = partitionFilters.iterator(); filters.hasNext(); ) {
      predicates.add(this.bound((Expression) filters.next()));
    }
    List found = new ArrayList();
    for (int i = 0; i < this.files.length; i++) {
      boolean kept = true;
      for (int p = 0; kept && p < predicates.size(); p++) {
        kept = ((InterpretedPredicate) predicates.get(p)).eval(this.values[i]);
      }
      if (kept) {
        Object file = new FileStatusWithMetadata(this.file(i), scala.collection.immutable.Map$.MODULE$.empty());
        found.add(new PartitionDirectory(this.values[i], seq(Collections.singletonList(file))));
      }
    }
    return seq(found);
  }

  private InterpretedPredicate bound(Expression filter) {
    List attributes = new ArrayList();
    for (int c = 0; c < this.schema.length(); c++) {
      Attribute found = DataTypeUtils.toAttribute(this.schema.fields()[c]);
      for (Iterator used = filter.references().iterator(); used.hasNext(); ) {
        Attribute reference = (Attribute) used.next();
        if (reference.name().equals(found.name())) found = reference;
      }
      attributes.add(found);
    }
    // A filter over anything else fails here.
    Expression bound = (Expression) BindReferences.bindReference(
        filter, org.apache.spark.sql.catalyst.expressions.package$.MODULE$.AttributeSeq(seq(attributes)), false);
    InterpretedPredicate predicate =
        org.apache.spark.sql.catalyst.expressions.Predicate$.MODULE$.createInterpreted(bound);
    predicate.initialize(0);
    return predicate;
  }

  public Seq rootPaths() { return seq(Collections.singletonList(this.root)); }

  public String[] inputFiles() {
    String[] found = new String[this.files.length];
    for (int i = 0; i < found.length; i++) found[i] = this.file(i).getPath().toUri().toString();
    return found;
  }

  public StructType partitionSchema() { return this.schema; }

  public long sizeInBytes() { return this.size; }

  public void refresh() {}

  public scala.Option metadataOpsTimeNs() { return scala.Option.empty(); }

  public boolean isTimeTravel() { return false; }

  private static Seq seq(List list) { return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq(); }

  /** What Python asks for, in one call each: calls take longer than most of what they do. */
  public static final class Maker {
    /** A copy of a session with other settings: lines of name, tab, value. */
    public SparkSession isolated(SparkSession parent, String settings) {
      SparkSession child = (SparkSession) parent.cloneSession();
      for (String line : settings.split("\n")) {
        String[] pair = line.split("\t", 2);
        // To set one that is deprecated is a warning in the user's log, even if nothing changes.
        if (!pair[1].equals(child.conf().get(pair[0]))) child.conf().set(pair[0], pair[1]);
      }
      return child;
    }

    /**
     * The rows of files that hold the columns ``stored``; of files as bytes if that is null.
     *
     * Data are names and values of options, then those of ListedFiles: ``size`` bytes, compressed by zlib.
     */
    public Dataset relation(
        SparkSession session, String root, String partition, String stored, int options, int count, byte[] data,
        int size) throws Exception {
      Inflater inflater = new Inflater();
      inflater.setInput(data);
      ByteBuffer buffer = ByteBuffer.allocate(size);
      int filled = inflater.inflate(buffer.array());
      inflater.end();
      if (filled != size) throw new IllegalStateException("the list of files is cut off");
      byte[][] texts = texts(buffer, 2 * options);
      Map values = new HashMap();
      for (int i = 0; i < texts.length; i += 2) {
        values.put(new String(texts[i], UTF_8), new String(texts[i + 1], UTF_8));
      }
      StructType schema = (StructType) DataType.fromDDL(partition);
      ListedFiles files = new ListedFiles(root, schema, count, buffer);
      boolean isBinary = stored == null;
      FileFormat format = isBinary ? (FileFormat) new BinaryFileFormat() : (FileFormat) new ParquetFileFormat();
      StructType columns = isBinary ? BinaryFileFormat$.MODULE$.schema() : (StructType) DataType.fromDDL(stored);
      return session.baseRelationToDataFrame(new HadoopFsRelation(
          files, schema, columns, scala.Option.empty(), format,
          org.apache.spark.api.python.PythonUtils.toScalaMap(values), session));
    }

    /** A dataset of one session as one of another, which then runs it. */
    public Dataset moved(Dataset frame, SparkSession session) {
      return org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows(session, frame.queryExecution().analyzed());
    }
  }
}
