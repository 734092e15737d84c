; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.70, %join.66 ]
  %.9 = mul nsw i64 %i.8, -16
  %.10 = add nsw i64 %.9, 3
  %.11 = call i64 @llvm.smax.i64(i64 %.10, i64 0)
  %.12 = call i64 @llvm.smin.i64(i64 %.11, i64 16)
  %.13 = trunc i64 %.12 to i32
  %.14 = insertelement <8 x i32> poison, i32 %.13, i64 0
  %.15 = shufflevector <8 x i32> %.14, <8 x i32> poison, <8 x i32> zeroinitializer
  %.16 = icmp sge <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.15
  %.17 = trunc i64 %.12 to i32
  %.18 = insertelement <8 x i32> poison, i32 %.17, i64 0
  %.19 = shufflevector <8 x i32> %.18, <8 x i32> poison, <8 x i32> zeroinitializer
  %.20 = icmp sge <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.19
  %.21 = add nsw i64 %n, -2
  %.22 = call i64 @llvm.smax.i64(i64 %.21, i64 0)
  %.23 = call i64 @llvm.smin.i64(i64 %.22, i64 16)
  %.24 = trunc i64 %.23 to i32
  %.25 = insertelement <8 x i32> poison, i32 %.24, i64 0
  %.26 = shufflevector <8 x i32> %.25, <8 x i32> poison, <8 x i32> zeroinitializer
  %.27 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.26
  %.28 = trunc i64 %.23 to i32
  %.29 = insertelement <8 x i32> poison, i32 %.28, i64 0
  %.30 = shufflevector <8 x i32> %.29, <8 x i32> poison, <8 x i32> zeroinitializer
  %.31 = icmp slt <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.30
  %.32 = trunc i64 %.12 to i32
  %.33 = insertelement <8 x i32> poison, i32 %.32, i64 0
  %.34 = shufflevector <8 x i32> %.33, <8 x i32> poison, <8 x i32> zeroinitializer
  %.35 = icmp sge <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.34
  %.36 = trunc i64 %.23 to i32
  %.37 = insertelement <8 x i32> poison, i32 %.36, i64 0
  %.38 = shufflevector <8 x i32> %.37, <8 x i32> poison, <8 x i32> zeroinitializer
  %.39 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.38
  %.40 = and <8 x i1> %.35, %.39
  %.41 = trunc i64 %.12 to i32
  %.42 = insertelement <8 x i32> poison, i32 %.41, i64 0
  %.43 = shufflevector <8 x i32> %.42, <8 x i32> poison, <8 x i32> zeroinitializer
  %.44 = icmp sge <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.43
  %.45 = trunc i64 %.23 to i32
  %.46 = insertelement <8 x i32> poison, i32 %.45, i64 0
  %.47 = shufflevector <8 x i32> %.46, <8 x i32> poison, <8 x i32> zeroinitializer
  %.48 = icmp slt <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.47
  %.49 = and <8 x i1> %.44, %.48
  %.50 = icmp slt i64 %.12, %.23
  br i1 %.50, label %then.51, label %join.52
then.51:
  %.53 = mul nsw i64 %i.8, 16
  %.54 = getelementptr float, ptr %A, i64 %.53
  %.55 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.54, <8 x i1> %.40, <8 x float> zeroinitializer)
  %.56 = getelementptr float, ptr %.54, i64 8
  %.57 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.56, <8 x i1> %.49, <8 x float> zeroinitializer)
  %.58 = getelementptr float, ptr %C, i64 %.53
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.55, ptr align 4 %.58, <8 x i1> %.40)
  %.59 = getelementptr float, ptr %.58, i64 8
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.57, ptr align 4 %.59, <8 x i1> %.49)
  br label %join.52
join.52:
  %.60 = xor <8 x i1> %.40, splat (i1 true)
  %.61 = xor <8 x i1> %.49, splat (i1 true)
  %.62 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.60)
  %.63 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.61)
  %.64 = or i1 %.62, %.63
  br i1 %.64, label %then.65, label %join.66
then.65:
  %.67 = mul nsw i64 %i.8, 16
  %.68 = getelementptr float, ptr %C, i64 %.67
  call void @llvm.masked.store.v8f32.p0(<8 x float> zeroinitializer, ptr align 4 %.68, <8 x i1> %.60)
  %.69 = getelementptr float, ptr %.68, i64 8
  call void @llvm.masked.store.v8f32.p0(<8 x float> zeroinitializer, ptr align 4 %.69, <8 x i1> %.61)
  br label %join.66
join.66:
  %i_next.70 = add nuw nsw i64 %i.8, 1
  %.71 = icmp slt i64 %i_next.70, %.4
  br i1 %.71, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i1 @llvm.vector.reduce.or.v8i1(<8 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.46, %join.43 ]
  %.9 = mul nsw i64 %i.8, -16
  %.10 = add nsw i64 %.9, 3
  %.11 = call i64 @llvm.smax.i64(i64 %.10, i64 0)
  %.12 = call i64 @llvm.smin.i64(i64 %.11, i64 16)
  %.13 = trunc i64 %.12 to i32
  %.14 = insertelement <16 x i32> poison, i32 %.13, i64 0
  %.15 = shufflevector <16 x i32> %.14, <16 x i32> poison, <16 x i32> zeroinitializer
  %.16 = icmp sge <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.15
  %.17 = add nsw i64 %n, -2
  %.18 = call i64 @llvm.smax.i64(i64 %.17, i64 0)
  %.19 = call i64 @llvm.smin.i64(i64 %.18, i64 16)
  %.20 = trunc i64 %.19 to i32
  %.21 = insertelement <16 x i32> poison, i32 %.20, i64 0
  %.22 = shufflevector <16 x i32> %.21, <16 x i32> poison, <16 x i32> zeroinitializer
  %.23 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.22
  %.24 = trunc i64 %.12 to i32
  %.25 = insertelement <16 x i32> poison, i32 %.24, i64 0
  %.26 = shufflevector <16 x i32> %.25, <16 x i32> poison, <16 x i32> zeroinitializer
  %.27 = icmp sge <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.26
  %.28 = trunc i64 %.19 to i32
  %.29 = insertelement <16 x i32> poison, i32 %.28, i64 0
  %.30 = shufflevector <16 x i32> %.29, <16 x i32> poison, <16 x i32> zeroinitializer
  %.31 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.30
  %.32 = and <16 x i1> %.27, %.31
  %.33 = icmp slt i64 %.12, %.19
  br i1 %.33, label %then.34, label %join.35
then.34:
  %.36 = mul nsw i64 %i.8, 16
  %.37 = getelementptr float, ptr %A, i64 %.36
  %.38 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.37, <16 x i1> %.32, <16 x float> zeroinitializer)
  %.39 = getelementptr float, ptr %C, i64 %.36
  call void @llvm.masked.store.v16f32.p0(<16 x float> %.38, ptr align 4 %.39, <16 x i1> %.32)
  br label %join.35
join.35:
  %.40 = xor <16 x i1> %.32, splat (i1 true)
  %.41 = call i1 @llvm.vector.reduce.or.v16i1(<16 x i1> %.40)
  br i1 %.41, label %then.42, label %join.43
then.42:
  %.44 = mul nsw i64 %i.8, 16
  %.45 = getelementptr float, ptr %C, i64 %.44
  call void @llvm.masked.store.v16f32.p0(<16 x float> zeroinitializer, ptr align 4 %.45, <16 x i1> %.40)
  br label %join.43
join.43:
  %i_next.46 = add nuw nsw i64 %i.8, 1
  %.47 = icmp slt i64 %i_next.46, %.4
  br i1 %.47, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i1 @llvm.vector.reduce.or.v16i1(<16 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
